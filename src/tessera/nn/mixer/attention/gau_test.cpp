// The gated attention units against their definitions.
#include "tessera/nn/mixer/attention/gau.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/attention/flash_gau.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::gau_test {
namespace {

using ops::gen;

/// U, V and the affine copies of Z of every token.
struct Parts {
  Tensor u, v;
  std::vector<Tensor> copies;
};
Parts parts_of(MixerUnderTest& m, const Tensor& x, int64_t e, int64_t s) {
  const Tensor all = at::silu(at::matmul(x, m.values["in.weight"].t()));
  Parts out{all.narrow(1, 0, e), all.narrow(1, e, e), {}};
  for (int64_t i = 0; i < m.values["gamma"].size(0); ++i)
    out.copies.push_back(all.narrow(1, 2 * e, s) * m.values["gamma"][i] + m.values["beta"][i]);
  return out;
}

double relu2(double x) {
  return x > 0 ? x * x : 0;
}

TEST(Gau, AgainstTheDefinition) {
  constexpr int64_t kT = 9, kD = 4, kE = 6, kS = 3;
  const Tensor x = gen({kT, kD}, 1.3, 0.2) * 2;
  struct Kind {
    const char* divisor;
    bool causal;
  };
  for (const auto& [divisor, causal] : {Kind{"count", true}, Kind{"max_length", true},
                                        Kind{"count", false}, Kind{"length", false}}) {
    MixerUnderTest m(
        fmt::format(R"({{"type": "gau", "d_hidden": 6, "d_key": 3, "divisor": "{}"{}}})", divisor,
                    std::string(divisor) == "max_length" ? R"(, "max_length": 5)" : ""),
        kD, causal);
    m.fill({.size = 1.5});
    const Parts p = parts_of(m, x, kE, kS);
    Tensor mixed = at::zeros({kT, kE}, at::kDouble);
    for (int64_t i = 0; i < kT; ++i) {
      const int64_t seen = causal ? i + 1 : kT;
      const double n = std::string(divisor) == "max_length" ? 5 : static_cast<double>(seen);
      for (int64_t j = 0; j < seen; ++j)
        mixed[i] += relu2((p.copies[0][i] * p.copies[1][j]).sum().item<double>() / n) * p.v[j];
    }
    const Tensor want = at::matmul(p.u * mixed, m.values["out.weight"].t());
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    if (causal)
      ops::expect_both(
          [&](at::ScalarType type) {
            return m.run(x, type, {4, 1, 1, 3});
          },
          want, 1e-12);
  }
}

TEST(Gau, ALengthThatGrowsNeedsAnEncoder) {
  test::expect_error(ErrorKind::spec, "use count or max_length",
                     [] { MixerUnderTest(R"({"type": "gau", "divisor": "length"})", 4, true); });
}

TEST(FlashGau, AgainstTheDefinition) {
  constexpr int64_t kT = 11, kD = 4, kE = 6, kS = 3;
  const Tensor x = gen({kT, kD}, 1.3, 0.2) * 2;
  for (const int64_t c : {1, 3, 4, 11, 16})
    for (const bool causal : {true, false}) {
      MixerUnderTest m(
          fmt::format(R"({{"type": "flash_gau", "d_hidden": 6, "d_key": 3, "group": {}}})", c), kD,
          causal);
      m.fill({.size = 1.5});
      const Parts p = parts_of(m, x, kE, kS);
      const auto dot = [&](int64_t a, int64_t i, int64_t b, int64_t j) {
        return (p.copies[static_cast<size_t>(a)][i] * p.copies[static_cast<size_t>(b)][j])
            .sum()
            .item<double>();
      };
      Tensor mixed = at::zeros({kT, kE}, at::kDouble);
      for (int64_t i = 0; i < kT; ++i)
        for (int64_t j = 0; j < kT; ++j) {
          double weight = 0;
          if (i / c == j / c && (!causal || j <= i))
            weight += relu2(dot(0, i, 1, j) / static_cast<double>(c));
          if (causal && j / c < i / c) weight += dot(2, i, 3, j) / static_cast<double>(c);
          if (!causal) weight += dot(2, i, 3, j) / static_cast<double>(kT);
          mixed[i] += weight * p.v[j];
        }
      const Tensor want = at::matmul(p.u * mixed, m.values["out.weight"].t());
      ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
      if (causal)
        ops::expect_both(
            [&](at::ScalarType type) {
              return m.run(x, type, {4, 1, 1, 5});
            },
            want, 1e-12);
    }
}

TEST(FlashGau, OneGroupWithoutLinearPartIsGau) {
  MixerUnderTest flash(R"({"type": "flash_gau", "d_hidden": 6, "d_key": 3, "group": 8})", 4),
      gau(R"({"type": "gau", "d_hidden": 6, "d_key": 3, "divisor": "max_length", "max_length": 8})",
          4);
  gau.fill();
  flash.values = gau.values;
  flash.values["gamma"] = at::constant_pad_nd(gau.values["gamma"], {0, 0, 0, 2});
  flash.values["beta"] = at::constant_pad_nd(gau.values["beta"], {0, 0, 0, 2});
  const Tensor x = gen({8, 4}, 1.1, 0.3);
  ops::expect_near(flash.run(x, at::kDouble), gau.run(x, at::kDouble), 1e-14);
}

}  // namespace
}  // namespace tessera::nn::gau_test
