// Mamba-2 with all of its options against its definition, token by token in double.
#include "tessera/nn/mixer/scan/mamba2.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::mamba2_test {
namespace {

/// What token i reads in head j with a weight for every level: token after token of its past.
Tensor by_levels(const MixerUnderTest& m,
                 const std::vector<Tensor>& convolved,
                 const Tensor& dt_TH,
                 const Tensor& dl_THL,
                 int64_t i,
                 int64_t j) {
  const auto& c = m.part.as<Mamba2Config>();
  const int64_t p = c.head_dim, n = c.d_state, h = c.d_ssm / p, group = j / (h / c.n_groups);
  const Tensor a = -m.values.at("a_log").exp()[j];
  const Tensor weights = at::softplus(m.values.at("level_scale")[j] * dl_THL[i][j]);
  const auto part = [&](int64_t token, int64_t from, int64_t size) {
    return convolved[static_cast<size_t>(token)].narrow(0, from, size);
  };
  const Tensor asks = part(i, c.d_ssm + (c.n_groups + group) * n, n);
  Tensor y = at::zeros({p}, at::kDouble), decay = at::ones({}, at::kDouble);
  for (int64_t s = i; s >= 0; --s) {
    int64_t level = 0;
    for (int64_t bit = 0; bit < 32; ++bit)
      if ((s >> bit & 1) != (i >> bit & 1)) level = bit + 1;
    y = y + weights[level] * decay * asks.dot(part(s, c.d_ssm + group * n, n)) * dt_TH[s][j] *
                part(s, j * p, p);
    decay = decay * (dt_TH[s][j] * a).exp();
  }
  return y;
}

/// One document through the layer that state-spaces/mamba's Mamba2 is: projection parts [z0, x0, z,
/// x, B, C, dt], the convolution over [x, B, C], the recurrence of every head, the norm behind the
/// gate, and silu(z0) x0 in front of it all.
Tensor defined(const MixerUnderTest& m, const Tensor& u_TD) {
  const auto& c = m.part.as<Mamba2Config>();
  const int64_t t = u_TD.size(0), h = c.d_ssm / c.head_dim, p = c.head_dim, g = c.n_groups,
                n = c.d_state, beside = c.n_heads * p - c.d_ssm;
  const Tensor projected = at::matmul(u_TD, m.values.at("in.weight").t());
  const auto parts = projected.split_with_sizes(
      {beside, beside, c.d_ssm, c.d_ssm + 2 * g * n, h, h * c.levels}, -1);
  const Tensor w = m.values.at("conv.weight");
  std::vector<Tensor> convolved;
  for (int64_t i = 0; i < t; ++i) {
    Tensor sum = m.values.at("conv.bias").clone();
    for (int64_t j = 0; j < c.d_conv; ++j)
      if (i - c.d_conv + 1 + j >= 0) sum += w.select(1, j) * parts[3][i - c.d_conv + 1 + j];
    convolved.push_back(at::silu(sum));
  }
  const Tensor dt = at::softplus(parts[4] + m.values.at("dt_bias"));
  const Tensor a = -m.values.at("a_log").exp(), d = m.values.at("d");
  Tensor s = at::zeros({h, p, n}, at::kDouble);
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < t; ++i) {
    const Tensor x = convolved[static_cast<size_t>(i)].narrow(0, 0, c.d_ssm).reshape({h, p}),
                 b = convolved[static_cast<size_t>(i)].narrow(0, c.d_ssm, g * n).reshape({g, n}),
                 k = convolved[static_cast<size_t>(i)].narrow(0, c.d_ssm + g * n, g * n);
    const Tensor y = at::zeros({h, p}, at::kDouble);
    for (int64_t j = 0; j < h; ++j) {
      const int64_t group = j / (h / g);
      s[j] = (dt[i][j] * a[j]).exp() * s[j] + dt[i][j] * at::outer(x[j], b[group]);
      y[j] = c.levels > 0 ? by_levels(m, convolved, dt, parts[5].reshape({t, h, -1}), i, j)
                          : at::mv(s[j], k.reshape({g, n})[group]);
      y[j] += (c.d_per_channel ? d.reshape({h, p})[j] : d[j]) * x[j];
    }
    Tensor gated = y.flatten() * at::silu(parts[2][i]);
    if (c.norm_groups > 0) {
      gated = gated.reshape({c.norm_groups, -1});
      gated = gated * at::rsqrt(gated.square().mean(-1, true) + c.norm_eps);
      gated = gated.flatten() * m.values.at("norm.weight");
    }
    rows.push_back(at::cat({at::silu(parts[0][i]) * parts[1][i], gated}));
  }
  return at::matmul(at::stack(rows), m.values.at("out.weight").t());
}

TEST(Mamba2, OptionsAgainstTheirDefinition) {
  const char* fields[] = {
      "", R"(, "d_per_channel": true)", R"(, "d_ssm": 6)",
      R"(, "d_ssm": 6, "d_per_channel": true, "n_groups": 2, "norm_groups": 2)",
      R"(, "d_ssm": 9, "d_per_channel": true, "n_groups": 3, "norm_groups": 0, "d_conv": 1)"};
  for (const char* more : fields) {
    MixerUnderTest m(std::string(R"({"type": "mamba2", "n_heads": 5, "head_dim": 3, "d_state": 4,
        "chunk": 3)") + more +
                         "}",
                     6);
    m.fill({.size = 0.8});
    const Tensor x = ops::gen({9, 6}, 0.41, 0.2);
    m.expect_everywhere(x, defined(m, x), 1e-12);
  }
}

// Chunks of a document, a tree of them above, and calls that end within both.
TEST(Mamba2, LevelsAgainstTheirDefinition) {
  for (const char* more : {R"("chunk": 4)", R"("chunk": 6, "n_groups": 2, "d_ssm": 6)",
                           R"("chunk": 64, "d_per_channel": true)"}) {
    MixerUnderTest m(std::string(R"({"type": "mamba2", "n_heads": 4, "head_dim": 3, "d_state": 4,
        "levels": 7, )") +
                         more + "}",
                     6);
    m.fill({.size = 0.8});
    const Tensor x = ops::gen({45, 6}, 0.41, 0.2), want = defined(m, x);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    ops::expect_both(
        [&](at::ScalarType type) {
          return m.run(x, type, {1, 10, 5, 1, 1, 14, 13});
        },
        want, 1e-12);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {32, 13}); }, want, 1e-12);
    EXPECT_EQ(m.state()[0].shape[0], 6);
    EXPECT_THROW(m.run(ops::gen({65, 6}, 0.41, 0.2), at::kDouble), Error);
  }
}

/// A factor for every channel that is the same within a head is a factor for every head.
TEST(Mamba2, EqualFactorsOfChannelsAreThoseOfHeads) {
  MixerUnderTest heads(R"({"type": "mamba2", "n_heads": 4, "d_state": 3})", 6),
      channels(R"({"type": "mamba2", "n_heads": 4, "d_state": 3, "d_per_channel": true})", 6);
  heads.fill();
  channels.values = heads.values;
  channels.values["d"] = heads.values["d"].repeat_interleave(3);
  channels.expect_all_given();
  const Tensor x = ops::gen({7, 6}, 0.41, 0.2);
  ops::expect_near(channels.run(x, at::kDouble), heads.run(x, at::kDouble), 1e-13);
}

TEST(Mamba2, WidthsOfTheStateAndRefusals) {
  const MixerUnderTest m(R"({"type": "mamba2", "n_heads": 5, "head_dim": 3, "d_ssm": 6,
      "d_state": 4, "n_groups": 2})",
                         6);
  ASSERT_EQ(m.state().size(), 2U);
  EXPECT_EQ(m.state()[0].shape, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(m.state()[1].shape, (std::vector<int64_t>{3, 6 + 2 * 2 * 4}));
  const auto refused = [](const char* fields, const char* text) {
    test::expect_error(ErrorKind::spec, text, [&] {
      MixerUnderTest(
          std::string(R"({"type": "mamba2", "n_heads": 4, "head_dim": 3)") + fields + "}", 6);
    });
  };
  refused(R"(, "d_ssm": 7)",
          "d_ssm = 7; expected whole heads of head_dim = 3, at most n_heads * head_dim = 12");
  refused(R"(, "d_ssm": 15)", "d_ssm = 15; expected whole heads of head_dim = 3, at most");
  refused(R"(, "d_ssm": 9, "n_groups": 2)", "n_groups = 2 does not divide d_ssm / head_dim = 3");
  refused(R"(, "d_ssm": 9, "norm_groups": 4)", "norm_groups = 4 does not divide d_ssm = 9");
  refused(R"(, "levels": 1)", "levels = 1; expected 2 to 48");
  refused(R"(, "n_groups": 3)", "n_groups = 3 does not divide n_heads = 4");
}

}  // namespace
}  // namespace tessera::nn::mamba2_test
