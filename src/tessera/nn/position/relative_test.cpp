// Shaw, Transformer-XL and DeBERTa: products of queries and keys with vectors of the distance.
#include <gtest/gtest.h>

#include "tessera/nn/position/deberta.h"
#include "tessera/nn/position/position_testing.h"
#include "tessera/nn/position/relative.h"
#include "tessera/nn/position/sinusoidal.h"

namespace tessera::nn::relative_test {
namespace {

constexpr double kTau = 0.5;

// --- Shaw ---------------------------------------------------------------------------------------

Heads golden_heads() {
  return {ops::gen({1, 3, 4}, 0.37, 0.11), ops::gen({1, 3, 4}, 0.53, 0.29),
          ops::gen({1, 3, 4}, 0.71, 0.05)};
}

TEST(Shaw, Golden) {
  const spec::Json json = {{"type", "shaw"}, {"left", 1}, {"values", true}};
  const Values tables = {{"key.weight", ops::gen({3, 4}, 0.17, 0.9)},
                         {"value.weight", ops::gen({3, 4}, 0.13, 0.35)}};
  const Tensor causal =
      ops::tensor({0.8143081063, 1.53039243, 1.899336539, 1.772194289, 0.5904745028, 0.9112675841,
                   1.063443275, 1.018118068, 0.412838365, 0.5895637127, 0.7738138927, 0.9185834359},
                  {1, 3, 4});
  ops::expect_both(
      [&](at::ScalarType type) {
        return Scheme(json, tables, 1, 4, true).attend(golden_heads(), kTau, type);
      },
      causal, 1e-9);
  const Tensor both = ops::tensor({0.8292648982, 1.376857761, 1.667509232, 1.583518096,
                                   0.5842891021, 0.922668167, 1.095999944, 1.063046472},
                                  {2, 4});
  ops::expect_both(
      [&](at::ScalarType type) {
        return Scheme(json, tables, 1, 4, false)
            .attend(golden_heads(), kTau, type)[0]
            .narrow(0, 0, 2);
      },
      both, 1e-9);
}

TEST(Shaw, IsItsFormulaForEverySignAndTerm) {
  const Heads in = gen_heads(2, 9, 4);
  const int64_t left = 4, right = 2;
  const Tensor keys = ops::gen({left + right + 1, 4}, 0.17, 0.9),
               values = ops::gen({left + right + 1, 4}, 0.13, 0.35);
  for (const bool causal : {true, false})
    for (const bool reversed : {true, false})
      for (const bool both : {true, false}) {
        const spec::Json json = {{"type", "shaw"},
                                 {"left", left},
                                 {"right", right},
                                 {"values", true},
                                 {"sign", reversed ? "query_minus_key" : "key_minus_query"},
                                 {"terms", both ? "query_and_key" : "query"}};
        const Scheme scheme(json, {{"key.weight", keys}, {"value.weight", values}}, 2, 4, causal);
        const auto row = [&](int64_t i, int64_t j) {
          const int64_t d = std::min(right, std::max(-left, j - i));
          return reversed ? right - d : left + d;
        };
        std::vector<Tensor> heads;
        for (int64_t h = 0; h < 2; ++h)
          heads.push_back(attention_by_hand(
              in.q_HTD[h], in.k_HTD[h], kTau, causal,
              [&](int64_t i, int64_t j) {
                Tensor with = in.q_HTD[h][i];
                if (both) with = with + in.k_HTD[h][j];
                return kTau * (with * keys[row(i, j)]).sum().item<double>();
              },
              [&](int64_t i, int64_t j) { return in.v_HTD[h][j] + values[row(i, j)]; }));
        ops::expect_both([&](at::ScalarType type) { return scheme.attend(in, kTau, type); },
                         at::stack(heads), 1e-12);
      }
}

TEST(Shaw, AFarClipIsNoClip) {
  const Heads in = gen_heads(1, 5, 4);
  const Tensor wide = ops::gen({41, 4}, 0.17, 0.9);
  const Scheme far(spec::Json{{"type", "shaw"}, {"left", 20}}, {{"key.weight", wide}}, 1, 4, false);
  const Scheme just(spec::Json{{"type", "shaw"}, {"left", 4}},
                    {{"key.weight", wide.narrow(0, 16, 9)}}, 1, 4, false);
  ops::expect_near(far.attend(in, kTau, at::kDouble), just.attend(in, kTau, at::kDouble), 1e-14);
}

// --- Transformer-XL -----------------------------------------------------------------------------

TEST(Xl, GoldenShift) {
  // three queries after two remembered tokens; distances 4 .. 0 are columns 0 .. 4
  const Tensor q = at::zeros({1, 1, 3, 2}), k = at::zeros({1, 1, 5, 2});
  const Tensor index = indices(
      {q, k, 2, 0, 1}, [](int64_t distance) { return std::clamp<int64_t>(distance + 4, 0, 4); });
  const Tensor shifted = at::arange(15, at::kDouble).reshape({3, 5}).gather(1, index);
  const std::vector<std::vector<double>> want = {{2, 3, 4}, {6, 7, 8, 9}, {10, 11, 12, 13, 14}};
  for (int64_t i = 0; i < 3; ++i) {
    const auto& row = want[static_cast<size_t>(i)];
    ops::expect_near(shifted[i].narrow(0, 0, static_cast<int64_t>(row.size())), ops::tensor(row),
                     0);
  }
}

void expect_xl(const spec::Json& json,
               bool causal,
               const std::function<std::vector<double>(int64_t)>& sinusoid) {
  const int64_t h = 2, d = 3, width = h * d;
  const Heads in = gen_heads(h, 7, d);
  const Tensor relative = ops::gen({width, width}, 0.19, 0.4), u = ops::gen({h, d}, 0.6, 0.3),
               w = ops::gen({h, d}, 0.8, 0.1);
  const Scheme scheme(json, {{"relative.weight", relative}, {"u", u}, {"w", w}}, h, d, causal);
  expect_by_hand(scheme, in, kTau, causal, [&](int64_t a, int64_t i, int64_t j) {
    const Tensor key = at::matmul(relative, ops::tensor(sinusoid(i - j))).reshape({h, d})[a];
    return kTau *
           ((u[a] * in.k_HTD[a][j]).sum() + ((in.q_HTD[a][i] + w[a]) * key).sum()).item<double>();
  });
}

/// Width 6: frequencies 1, 10000^(-1/3), 10000^(-2/3).
double angle(int64_t distance, int64_t m) {
  return static_cast<double>(distance) * std::pow(10000, -static_cast<double>(m) / 3);
}

TEST(Xl, IsItsFormulaInBothDirections) {
  const auto halves = [](int64_t r) {
    return std::vector<double>{std::sin(angle(r, 0)), std::sin(angle(r, 1)), std::sin(angle(r, 2)),
                               std::cos(angle(r, 0)), std::cos(angle(r, 1)), std::cos(angle(r, 2))};
  };
  for (const bool causal : {true, false}) {
    expect_xl("xl", causal, halves);
    expect_xl({{"type", "xl"}, {"layout", "interleaved"}}, causal, [](int64_t r) {
      return std::vector<double>{std::sin(angle(r, 0)), std::cos(angle(r, 0)),
                                 std::sin(angle(r, 1)), std::cos(angle(r, 1)),
                                 std::sin(angle(r, 2)), std::cos(angle(r, 2))};
    });
    expect_xl({{"type", "xl"}, {"clamp", 3}}, causal,
              [&](int64_t r) { return halves(std::clamp<int64_t>(r, -3, 3)); });
  }
}

TEST(Xl, OneQueryAfterManyKeys) {
  // the last row of a whole pass is the pass of the last token after what came before
  const Heads in = gen_heads(2, 7, 3);
  const Scheme scheme("xl",
                      {{"relative.weight", ops::gen({6, 6}, 0.19, 0.4)},
                       {"u", ops::gen({2, 3}, 0.6, 0.3)},
                       {"w", ops::gen({2, 3}, 0.8, 0.1)}},
                      2, 3, true);
  const Tensor all = scheme.attend(in, kTau, at::kDouble);
  const auto tokens_first = [](const Tensor& x) { return x.transpose(0, 1); };
  const Tensor last = ops::attention(tokens_first(in.q_HTD).narrow(0, 6, 1),
                                     {{tokens_first(in.k_HTD), tokens_first(in.v_HTD), 0}}, 6,
                                     scheme.options(7, kTau, at::kDouble));
  ops::expect_near(last.transpose(0, 1), all.narrow(1, 6, 1), 1e-14);
}

// --- DeBERTa ------------------------------------------------------------------------------------

TEST(Deberta, GoldenBuckets) {
  DebertaConfig large;
  large.max_relative = 512;
  large.buckets = 256;
  const std::pair<int64_t, int64_t> wants[] = {
      {128, 128}, {129, 129}, {130, 130}, {131, 131}, {150, 143}, {200, 169},  {255, 192},
      {256, 192}, {300, 207}, {400, 233}, {500, 254}, {511, 255}, {-200, -169}};
  for (const auto& [distance, bucket] : wants)
    EXPECT_EQ(large.row(distance), bucket + 256) << distance;
  EXPECT_EQ(large.row(512), 511);
  DebertaConfig small;
  small.max_relative = 32;
  small.buckets = 8;
  const int64_t first[] = {0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6};
  for (int64_t d = 0; d < 32; ++d) EXPECT_EQ(small.row(d), 8 + (d < 16 ? first[d] : 7)) << d;
}

/// Parameter n of the golden, in the order query, key, value, pos_key, pos_query, weight and bias.
Tensor golden_parameter(int n) {
  return ops::gen(n % 2 == 0 ? std::vector<int64_t>{4, 4} : std::vector<int64_t>{4}, 0.2 + 0.1 * n,
                  0.1 * n);
}

Tensor golden_projection(const Tensor& x, int n) {
  return at::matmul(x, golden_parameter(n).to(x.scalar_type()).t()) +
         golden_parameter(n + 1).to(x.scalar_type());
}

void expect_deberta(const spec::Json& json, int64_t rows, const std::vector<double>& want) {
  const Tensor x = ops::gen({5, 4}, 0.41, 0.2);
  const auto heads = [&](int n) {
    return golden_projection(x, n).reshape({5, 2, 2}).transpose(0, 1);
  };
  const Heads in = {heads(0), heads(2), heads(4)};
  // the bias of pos_key (parameter 7) shifts whole rows and is left out
  Scheme scheme(json,
                {{"weight", ops::gen({rows, 4}, 0.33, 0.5)},
                 {"key.weight", golden_parameter(6)},
                 {"query.weight", golden_parameter(8)},
                 {"query.bias", golden_parameter(9)}},
                2, 2, false);
  scheme.project_q = [](const Tensor& r) { return golden_projection(r, 0).reshape({-1, 2, 2}); };
  scheme.project_k = [](const Tensor& r) { return golden_projection(r, 2).reshape({-1, 2, 2}); };
  ops::expect_both(
      [&](at::ScalarType type) {
        return scheme.attend(in, 1 / std::sqrt(2.0), type).transpose(0, 1).reshape({5, 4});
      },
      ops::tensor(want, {5, 4}), 1e-6);
}

TEST(Deberta, GoldenOfTheReleasedClass) {
  expect_deberta({{"type", "deberta"}, {"max_relative", 4}}, 8,
                 {2.5799196,  -0.2301712, 1.3831222, -1.0913879, 2.3229534, 0.1081809, 1.1982781,
                  -1.0107202, 0.4989709,  1.0907817, 0.9833042,  2.0847764, 0.9344469, 0.8474376,
                  0.9269179,  2.1306841,  2.8175711, -0.5412278, 0.9851036, -1.0368356});
  expect_deberta(
      {{"type", "deberta"}, {"max_relative", 4}, {"buckets", 2}, {"projections", "mixer"}}, 4,
      {2.7173648,  -0.3270252, 0.8395782, -1.0126519, 3.0713326,  -0.8237980, 0.8497673,
       -0.9722817, -1.9177412, 2.6601197, 2.0464700,  -1.1128247, -1.2231235, 2.0629349,
       0.9785216,  1.8683226,  3.0151220, -0.7820357, 1.2679553,  -0.8655594});
}

TEST(Deberta, EachTermAloneIsItsFormula) {
  const Heads in = gen_heads(2, 7, 3);
  const Tensor table = ops::gen({6, 6}, 0.33, 0.5), key = ops::gen({6, 6}, 0.21, 0.1),
               query = ops::gen({6, 6}, 0.27, 0.6), bias = ops::gen({6}, 0.5, 0.2);
  const Values values = {
      {"weight", table}, {"key.weight", key}, {"query.weight", query}, {"query.bias", bias}};
  const Tensor keys_RHD = at::matmul(table, key.t()).reshape({6, 2, 3}),
               queries_RHD = (at::matmul(table, query.t()) + bias).reshape({6, 2, 3});
  const auto row = [](int64_t i, int64_t j) { return std::clamp<int64_t>(i - j + 3, 0, 5); };
  for (const bool causal : {true, false})
    for (const bool c2p : {true, false}) {
      const spec::Json json = {
          {"type", "deberta"}, {"max_relative", 3}, {"c2p", c2p}, {"p2c", !c2p}};
      const double scale = kTau / std::sqrt(2.0);
      std::vector<Tensor> heads;
      for (int64_t h = 0; h < 2; ++h)
        heads.push_back(attention_by_hand(
            in.q_HTD[h], in.k_HTD[h], scale, causal,
            [&](int64_t i, int64_t j) {
              const Tensor term = c2p ? in.q_HTD[h][i] * keys_RHD[row(i, j)][h]
                                      : in.k_HTD[h][j] * queries_RHD[row(i, j)][h];
              return scale * term.sum().item<double>();
            },
            [&](int64_t, int64_t j) { return in.v_HTD[h][j]; }));
      ops::expect_both(
          [&](at::ScalarType type) {
            return Scheme(json, values, 2, 3, causal).attend(in, kTau, type);
          },
          at::stack(heads), 1e-12);
    }
}

}  // namespace
}  // namespace tessera::nn::relative_test
