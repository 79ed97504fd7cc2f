// CoPE, FIRE, TUPE and the decoupled schemes.
#include <gtest/gtest.h>

#include "tessera/nn/position/position_testing.h"
#include "tessera/nn/position/t5.h"

namespace tessera::nn::content_test {
namespace {

// --- CoPE ---------------------------------------------------------------------------------------

Heads cope_heads() {
  return {ops::gen({1, 4, 2}, 0.7, 0.1), ops::gen({1, 4, 2}, 0.5, 0.4),
          ops::gen({1, 4, 2}, 0.9, -0.2)};
}

TEST(Cope, Golden) {
  const double tau = 1 / std::sqrt(2.0);
  const Values values = {{"weight", ops::gen({3, 2}, 0.8, 0.3)}};
  const spec::Json plain = {{"type", "cope"}, {"n_positions", 3}};
  const Scheme scheme(plain, values, 1, 2, true);
  ops::expect_both([&](at::ScalarType type) { return scheme.added(cope_heads(), tau, type)[0][3]; },
                   ops::tensor({0.05674058, -0.71991187, -1.25869746, -1.22422848}), 1e-8);
  ops::expect_both([&](at::ScalarType type) { return scheme.attend(cope_heads(), tau, type); },
                   ops::tensor({-0.19866933, 0.64421769, 0.78422027, 0.60669373, 0.17134444,
                                0.12354512, -0.36842951, 0.11214629},
                               {1, 4, 2}),
                   1e-8);
  spec::Json scaled = plain;
  scaled["scaled"] = true;
  ops::expect_both(
      [&](at::ScalarType type) {
        return Scheme(scaled, values, 1, 2, true).attend(cope_heads(), tau, type);
      },
      ops::tensor({-0.19866933, 0.64421769, 0.72728519, 0.60886735, 0.16923909, 0.09963811,
                   -0.41234718, 0.03353932},
                  {1, 4, 2}),
      1e-8);
}

// A table whose row n is n u, with q_3 . u = 1, adds to the scores of query 3 the positions
// themselves.
TEST(Cope, GoldenPositions) {
  const Tensor q3 = cope_heads().q_HTD[0][3], u = q3 / q3.square().sum();
  const Scheme scheme({{"type", "cope"}, {"n_positions", 3}},
                      {{"weight", at::outer(at::arange(3, at::kDouble), u)}}, 1, 2, true);
  ops::expect_both(
      [&](at::ScalarType type) {
        return scheme.added(cope_heads(), 1 / std::sqrt(2.0), type)[0][3];
      },
      ops::tensor({1.53843106, 1.22484777, 1.00730624, 0.65291890}), 1e-8);
}

TEST(Cope, IsItsFormulaForEveryHead) {
  const Heads in = gen_heads(2, 9, 4);
  const Tensor tables = ops::gen({2, 4, 4}, 0.8, 0.3);
  for (const bool per_head : {true, false}) {
    const spec::Json json = {{"type", "cope"}, {"n_positions", 4}, {"per_head", per_head}};
    const Scheme scheme(json, {{"weight", per_head ? tables : tables[0]}}, 2, 4, true);
    expect_by_hand(scheme, in, 0.5, true, [&](int64_t h, int64_t i, int64_t j) {
      const auto dot = [](const Tensor& a, const Tensor& b) {
        return (a * b).sum().item<double>();
      };
      double place = 0;
      for (int64_t k = j; k <= i; ++k)
        place += 1 / (1 + std::exp(-0.5 * dot(in.q_HTD[h][i], in.k_HTD[h][k])));
      place = std::min(place, 3.0);
      const Tensor& table = tables[per_head ? h : 0];
      const auto row = [&](double p) {
        return dot(in.q_HTD[h][i], table[static_cast<int64_t>(p)]);
      };
      const double part = place - std::floor(place);
      return part * row(std::ceil(place)) + (1 - part) * row(std::floor(place));
    });
  }
}

TEST(Cope, OpenGatesCountTokens) {
  // products of 200 open every gate: p = i - j + 1
  Heads in = gen_heads(1, 6, 2);
  in.q_HTD = at::full({1, 6, 2}, 10, at::kDouble);
  in.k_HTD = at::full({1, 6, 2}, 10, at::kDouble);
  const Tensor table = ops::gen({8, 2}, 0.8, 0.3);
  const Scheme scheme(spec::Json{{"type", "cope"}, {"n_positions", 8}}, {{"weight", table}}, 1, 2,
                      true);
  expect_by_hand(scheme, in, 1, true, [&](int64_t, int64_t i, int64_t j) {
    return 10 * table[i - j + 1].sum().item<double>();
  });
}

// --- FIRE ---------------------------------------------------------------------------------------

TEST(Fire, Golden) {
  const spec::Json json = {{"type", "fire"}, {"d_hidden", 3}, {"threshold", 2.5}};
  const Scheme scheme(json,
                      {{"c", ops::tensor({0.1})},
                       {"m", ops::tensor({1})},
                       {"up.weight", ops::gen({3, 1}, 0.9, 0.2)},
                       {"up.bias", ops::gen({3}, 0.4, 0.1)},
                       {"down.weight", ops::gen({2, 3}, 0.6, -0.3)}},
                      2, 4, true);
  // the golden has a bias of the output, which shifts whole rows
  const double shift = std::sin(0.25);
  ops::expect_both(
      [&](at::ScalarType type) { return scheme.added(gen_heads(2, 4, 4), 1, type)[0][3] + shift; },
      ops::tensor({1.89011478, 1.61037481, 1.30628016, 0.97318215}), 1e-8);
}

TEST(Fire, IsItsFormulaBelowAndAboveTheThreshold) {
  const Heads in = gen_heads(2, 9, 4);
  const spec::Json json = {{"type", "fire"}, {"d_hidden", 5}, {"threshold", 4}};
  const Tensor up = ops::gen({5, 1}, 0.9, 0.2), bias = ops::gen({5}, 0.7, -0.4),
               down = ops::gen({2, 5}, 0.6, -0.3);
  const double c = -0.3, m = 1.25;
  const Scheme scheme(json,
                      {{"c", ops::tensor({c})},
                       {"m", ops::tensor({m})},
                       {"up.weight", up},
                       {"up.bias", bias},
                       {"down.weight", down}},
                      2, 4, true);
  expect_by_hand(scheme, in, 0.5, true, [&](int64_t h, int64_t i, int64_t j) {
    const double length = std::max(static_cast<double>(i), m * 4);
    const double x =
        std::log(0.3 * static_cast<double>(i - j) + 1) / (std::log(0.3 * length + 1) + 1e-6);
    double sum = 0;
    for (int64_t f = 0; f < 5; ++f)
      sum += down[h][f].item<double>() *
             std::max(0.0, up[f][0].item<double>() * x + bias[f].item<double>());
    return sum;
  });
}

// --- TUPE ---------------------------------------------------------------------------------------

TEST(Tupe, Golden) {
  const spec::Json json = {
      {"type", "tupe"}, {"n_positions", 3}, {"untie_cls", true}, {"norm", nullptr}};
  const Scheme scheme(json,
                      {{"weight", ops::gen({4, 2}, 0.45, 0.3)},
                       {"q.weight", ops::gen({2, 2}, 0.6, 0.2)},
                       {"k.weight", ops::gen({2, 2}, 0.8, 0.5)}},
                      1, 2, false);
  ops::expect_both([&](at::ScalarType type) { return scheme.added(gen_heads(1, 3, 2), 1, type); },
                   ops::tensor({0.4091454148, 0.4091454148, 0.4091454148, 1.585253125, 0.8682607246,
                                -0.03085243784, 1.585253125, -0.1503830901, 0.01795736496},
                               {1, 3, 3}),
                   1e-9);
}

Values tupe_values(int64_t rows) {
  return {
      {"weight", ops::gen({rows, 6}, 0.45, 0.3)}, {"norm.weight", ops::gen({6}, 0.3, 1)},
      {"norm.bias", ops::gen({6}, 0.2, 0.4)},     {"q.weight", ops::gen({6, 6}, 0.6, 0.2)},
      {"q.bias", ops::gen({6}, 0.5, 0.1)},        {"k.weight", ops::gen({6, 6}, 0.8, 0.5)},
      {"k.bias", ops::gen({6}, 0.7, 0.6)},        {"relative.weight", ops::gen({9, 2}, 0.9, 0.4)}};
}

TEST(Tupe, IsItsFormulaWithBucketsAndUntiedToken) {
  const Heads in = gen_heads(2, 7, 3);
  Values values = tupe_values(9);
  T5Config t5;
  t5.n_buckets = 8;
  t5.max_distance = 6;
  // positions after the norm, one more than tokens
  const Tensor rows = values.at("weight").narrow(0, 0, 8);
  const Tensor centred = rows - rows.mean(-1, true);
  const Tensor normed =
      centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * values.at("norm.weight") +
      values.at("norm.bias");
  const auto project = [&](const std::string& name) {
    return (at::matmul(normed, values.at(name + ".weight").t()) + values.at(name + ".bias"))
        .reshape({8, 2, 3});
  };
  const Tensor q = project("q"), k = project("k");
  const Tensor& table = values.at("relative.weight");
  for (const bool causal : {true, false}) {
    const spec::Json json = {{"type", "tupe"}, {"n_positions", 8},  {"untie_cls", true},
                             {"buckets", 8},   {"max_distance", 6}, {"norm", "layer_norm"}};
    const Scheme scheme(json, values, 2, 3, causal);
    const double scale = 0.5 / std::sqrt(2.0);
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < 2; ++h) {
      const auto position = [&](int64_t i, int64_t j) {
        return (q[i][h] * k[j][h]).sum().item<double>() / std::sqrt(6.0);
      };
      heads.push_back(attention_by_hand(
          in.q_HTD[h], in.k_HTD[h], scale, causal,
          [&](int64_t i, int64_t j) {
            if (i == 0) return position(0, 0) + table[4][h].item<double>();
            if (j == 0) return position(1, 1) + table[8][h].item<double>();
            return position(i + 1, j + 1) + table[t5.bucket(j - i, false)][h].item<double>();
          },
          [&](int64_t, int64_t j) { return in.v_HTD[h][j]; }));
    }
    ops::expect_both([&](at::ScalarType type) { return scheme.attend(in, 0.5, type); },
                     at::stack(heads), 1e-12);
  }
}

// --- decoupled ----------------------------------------------------------------------------------

TEST(Decoupled, UntiedIsTupe) {
  const Heads in = gen_heads(2, 7, 3);
  Values values = tupe_values(9);
  values.erase("k.bias");
  for (const bool causal : {true, false}) {
    const Scheme tupe(spec::Json{{"type", "tupe"}, {"n_positions", 9}}, values, 2, 3, causal);
    const Scheme untied(
        spec::Json{{"type", "decoupled"}, {"variant", "untied"}, {"n_positions", 9}}, values, 2, 3,
        causal);
    ops::expect_near(untied.attend(in, 0.5, at::kDouble), tupe.attend(in, 0.5, at::kDouble), 0);
    EXPECT_GT((untied.attend(in, 0.5, at::kDouble) -
               Scheme("none", {}, 2, 3, causal).attend(in, 0.5, at::kDouble))
                  .abs()
                  .max()
                  .item<double>(),
              0.01);
  }
}

TEST(Decoupled, DisentangledIsDeberta) {
  const Heads in = gen_heads(2, 7, 3);
  const Values values{{"weight", ops::gen({10, 6}, 0.3, 0.2)},
                      {"key.weight", ops::gen({6, 6}, 0.5, 0.7)},
                      {"query.weight", ops::gen({6, 6}, 0.7, 0.4)},
                      {"query.bias", ops::gen({6}, 0.9, 0.1)}};
  for (const bool causal : {true, false}) {
    const Scheme deberta(spec::Json{{"type", "deberta"}, {"max_relative", 5}}, values, 2, 3,
                         causal);
    const Scheme same(
        spec::Json{{"type", "decoupled"}, {"variant", "disentangled"}, {"max_distance", 5}}, values,
        2, 3, causal);
    ops::expect_near(same.attend(in, 0.5, at::kDouble), deberta.attend(in, 0.5, at::kDouble), 0);
  }
}

TEST(Decoupled, DecoupledRopeTurnsAPartOfTheChannels) {
  const Tensor x_NHD = ops::gen({5, 2, 6}, 0.3, 0.2);
  const Batch batch = Batch::of(std::vector<std::vector<int64_t>>{{0, 0, 0, 0, 0}});
  const auto rotated = [&](const spec::Json& json) {
    Context context;
    context.batch = &batch;
    return Scheme(json, {}, 2, 6, true).make(at::kDouble)->rotate(x_NHD, Side::key, context);
  };
  const Tensor got = rotated({{"type", "decoupled"}, {"variant", "decoupled_rope"}, {"rank", 4}});
  ops::expect_near(got, rotated({{"type", "rope"}, {"rotary_dim", 4}}), 0);
  ops::expect_near(got.narrow(2, 4, 2), x_NHD.narrow(2, 4, 2), 0);
  EXPECT_GT((got - x_NHD).abs().max().item<double>(), 0.1);
}

TEST(Decoupled, DietIsItsFormula) {
  const Heads in = gen_heads(2, 7, 3);
  const Tensor q = ops::gen({9, 2, 4}, 0.3, 0.2), k = ops::gen({9, 2, 4}, 0.5, 0.7);
  for (const bool causal : {true, false}) {
    expect_by_hand(
        Scheme(
            spec::Json{
                {"type", "decoupled"}, {"variant", "diet_abs"}, {"n_positions", 9}, {"rank", 4}},
            {{"q.weight", q}, {"k.weight", k}}, 2, 3, causal),
        in, 0.5, causal,
        [&](int64_t h, int64_t i, int64_t j) { return (q[i][h] * k[j][h]).sum().item<double>(); });
    const Tensor bias = ops::gen({2, causal ? 4 : 7}, 0.9, 0.1);
    expect_by_hand(
        Scheme(spec::Json{{"type", "decoupled"}, {"variant", "diet_rel"}, {"max_distance", 3}},
               {{"weight", bias}}, 2, 3, causal),
        in, 0.5, causal, [&](int64_t h, int64_t i, int64_t j) {
          return bias[h][3 + std::clamp<int64_t>(j - i, -3, 3)].item<double>();
        });
  }
}

TEST(Decoupled, PositionScoresIgnoreTheContent) {
  const Heads in = gen_heads(2, 7, 3);
  Heads swapped = in;
  const Tensor order = at::tensor(std::vector<int64_t>{0, 5, 2, 3, 4, 1, 6}, at::kLong);
  swapped.q_HTD = in.q_HTD.index_select(1, order).requires_grad_(true);
  swapped.k_HTD = in.k_HTD.index_select(1, order).requires_grad_(true);
  const Scheme schemes[] = {
      Scheme(spec::Json{{"type", "decoupled"}, {"n_positions", 9}, {"rank", 4}},
             {{"q.weight", ops::gen({9, 2, 4}, 0.3, 0.2)},
              {"k.weight", ops::gen({9, 2, 4}, 0.5, 0.7)}},
             2, 3, false),
      Scheme(spec::Json{{"type", "decoupled"}, {"variant", "untied"}, {"n_positions", 9}},
             tupe_values(9), 2, 3, false),
      Scheme(spec::Json{{"type", "decoupled"}, {"variant", "diet_rel"}, {"max_distance", 3}},
             {{"weight", ops::gen({2, 7}, 0.9, 0.1)}}, 2, 3, false)};
  for (const Scheme& scheme : schemes) {
    const Tensor moved = scheme.added(swapped, 0.5, at::kDouble);
    ops::expect_near(moved, scheme.added(in, 0.5, at::kDouble), 0);
    // nor does a gradient reach the content
    EXPECT_FALSE(moved.requires_grad());
  }
}

TEST(Decoupled, ZeroTablesAreNoPositions) {
  const Heads in = gen_heads(2, 7, 3);
  const Tensor none = Scheme("none", {}, 2, 3, true).attend(in, 0.5, at::kDouble);
  const Tensor zero = at::zeros({9, 2, 4}, at::kDouble);
  ops::expect_near(
      Scheme(spec::Json{{"type", "decoupled"}, {"n_positions", 9}, {"rank", 4}},
             {{"q.weight", zero}, {"k.weight", ops::gen({9, 2, 4}, 0.5, 0.7)}}, 2, 3, true)
          .attend(in, 0.5, at::kDouble),
      none, 1e-14);
}

}  // namespace
}  // namespace tessera::nn::content_test
