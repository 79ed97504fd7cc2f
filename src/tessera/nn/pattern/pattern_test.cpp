// Attention under patterns: values computed independently in double, and definitions written out
// token by token.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn::pattern_test {
namespace {

using ops::expect_near;
using ops::gen;
using ops::tensor;
using spec::Json;

/// One attention mixer with given weights; absent ones are drawn.
MixerUnderTest rig_of(const char* json, int64_t d_model, bool causal) {
  MixerUnderTest rig(json, d_model, causal);
  rig.fill({.frequency = 0.48, .frequency_step = 0.17, .phase = 0.4, .phase_step = 0, .size = 1});
  return rig;
}

Batch batch_of(int64_t t) {
  return Batch::of(at::zeros({1, t}, at::kLong));
}

/// Double against `want`, and the kernel within float32's rounding.
void expect_mixer(const MixerUnderTest& rig,
                  const Tensor& x,
                  const Batch& batch,
                  const Tensor& want) {
  ops::expect_both([&](at::ScalarType type) { return rig.forward(x, batch, type); }, want, 1e-9);
}

TEST(Longformer, GoldenWithOneGlobalToken) {
  // x = I, so that the projections are the golden's q, k and v; the output's first two channels
  MixerUnderTest rig = rig_of(R"({"type": "attention", "n_heads": 1, "head_dim": 2,
              "pattern": {"type": "longformer", "width": 2, "global_tokens": [0], "projections": "separate"}})",
                              5, false);
  const auto project = [&](const char* name, double a, double b) {
    rig.values[name] = gen({5, 2}, a, b).t().contiguous();
  };
  project("q.weight", 0.37, 0.11);
  project("k.weight", 0.53, 0.29);
  project("v.weight", 0.71, 0.05);
  project("q_global.weight", 0.21, 0.7);
  project("k_global.weight", 0.63, 0.15);
  project("v_global.weight", 0.83, 0.45);
  rig.values["o.weight"] = at::eye(5, 2, at::kDouble);
  const Tensor x = at::eye(5, at::kDouble);
  const Tensor want =
      tensor({0.3696803253, 0.228835744, 0.5455414485, 0.4751575746, 0.4753973573, 0.3919398769,
              -0.1018397081, -0.05869691448, -0.5106384425, -0.09947903278},
             {5, 2});
  ops::expect_both(
      [&](at::ScalarType type) { return rig.forward(x, batch_of(5), type).narrow(1, 0, 2); }, want,
      1e-9);

  // the same token marked by the batch, beside a document without a mark
  MixerUnderTest marked = rig_of(R"({"type": "attention", "n_heads": 1, "head_dim": 2,
                 "pattern": {"type": "longformer", "width": 2, "projections": "separate"}})",
                                 5, false);
  marked.values = rig.values;
  Batch two = Batch::of(at::zeros({2, 5}, at::kLong));
  two.global_N = at::zeros({10}, at::kBool);
  two.global_N[5] = true;
  ops::expect_both(
      [&](at::ScalarType type) {
        return marked.forward(at::cat({x, x}), two, type).narrow(0, 5, 5).narrow(1, 0, 2);
      },
      want, 1e-9);
  // row 4 of the other document sees keys 3 and 4 alone
  const Tensor q = gen({5, 2}, 0.37, 0.11)[4], k = gen({5, 2}, 0.53, 0.29).narrow(0, 3, 2);
  const Tensor p = at::softmax(at::mv(k, q) / std::sqrt(2.0), 0);
  expect_near(marked.forward(at::cat({x, x}), two, at::kDouble)[4].narrow(0, 0, 2),
              at::mv(gen({5, 2}, 0.71, 0.05).narrow(0, 3, 2).t(), p), 1e-12);
}

TEST(Longformer, SeparateProjectionsThatAreEqualChangeNothing) {
  for (const bool causal : {true, false}) {
    MixerUnderTest shared =
        rig_of(R"({"type": "attention", "n_heads": 2, "n_kv_heads": 1, "position": "rope",
        "pattern": {"type": "longformer", "width": 4, "global_tokens": [1, 2, 7]}})",
               8, causal);
    MixerUnderTest apart =
        rig_of(R"({"type": "attention", "n_heads": 2, "n_kv_heads": 1, "position": "rope",
        "pattern": {"type": "longformer", "width": 4, "global_tokens": [1, 2, 7], "projections": "separate"}})",
               8, causal);
    for (const char* name : {"q", "k", "v"})
      apart.values[name + std::string("_global.weight")] =
          shared.values[name + std::string(".weight")];
    for (const char* name : {"q", "k", "v", "o"})
      apart.values[name + std::string(".weight")] = shared.values[name + std::string(".weight")];
    const Tensor x = gen({13, 8}, 0.7, 0.2);
    expect_mixer(apart, x, batch_of(13), shared.forward(x, batch_of(13), at::kDouble));
  }
}

/// Rotates pairs (c, c + D / 2) of x [D] by position * theta^(-2 c / D).
Tensor rotated(const Tensor& x, int64_t position, double theta) {
  Tensor out = x.clone();
  const int64_t half = x.size(0) / 2;
  for (int64_t c = 0; c < half; ++c) {
    const double angle = static_cast<double>(position) *
                         std::pow(theta, -static_cast<double>(c) / static_cast<double>(half));
    const double a = x[c].item<double>(), b = x[c + half].item<double>();
    out[c] = a * std::cos(angle) - b * std::sin(angle);
    out[c + half] = b * std::cos(angle) + a * std::sin(angle);
  }
  return out;
}

TEST(SinkWindow, IsACacheWhoseKeysRotateAtTheirPlaceInIt) {
  constexpr int64_t kTokens = 14, kHeads = 2, kFirst = 2, kWidth = 5, kDim = 4;
  const MixerUnderTest rig =
      rig_of(R"({"type": "attention", "n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "softcap": 2,
      "position": {"type": "rope", "theta": 20}, "pattern": {"type": "sink_window", "first": 2, "width": 5}})",
             6, true);
  const Tensor x = gen({kTokens, 6}, 0.9, 0.3);
  const auto& w = rig.values;
  const Tensor q = at::matmul(x, w.at("q.weight").t()).reshape({kTokens, kHeads, kDim}),
               k = at::matmul(x, w.at("k.weight").t()), v = at::matmul(x, w.at("v.weight").t());
  Tensor heads = at::zeros({kTokens, kHeads, kDim}, at::kDouble);
  std::vector<int64_t> cache;  // tokens held
  for (int64_t t = 0; t < kTokens; ++t) {
    cache.push_back(t);
    if (static_cast<int64_t>(cache.size()) > kFirst + kWidth) cache.erase(cache.begin() + kFirst);
    const auto last = static_cast<int64_t>(cache.size()) - 1;
    for (int64_t h = 0; h < kHeads; ++h) {
      std::vector<Tensor> scores, values;
      for (int64_t slot = 0; slot <= last; ++slot) {
        const Tensor s =
            (rotated(q[t][h], last, 20) * rotated(k[cache[static_cast<size_t>(slot)]], slot, 20))
                .sum() /
            2;
        scores.push_back(2 * at::tanh(s / 2));
        values.push_back(v[cache[static_cast<size_t>(slot)]]);
      }
      heads[t][h] = at::matmul(at::softmax(at::stack(scores), 0), at::stack(values));
    }
  }
  const Tensor want = at::matmul(heads.reshape({kTokens, kHeads * kDim}), w.at("o.weight").t());
  expect_mixer(rig, x, batch_of(kTokens), want);
  // until the cache is full it is plain causal attention
  MixerUnderTest full =
      rig_of(R"({"type": "attention", "n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "softcap": 2,
      "position": {"type": "rope", "theta": 20}})",
             6, true);
  full.values = rig.values;
  const Tensor plain = full.forward(x, batch_of(kTokens), at::kDouble);
  expect_near(plain.narrow(0, 0, kFirst + kWidth), want.narrow(0, 0, kFirst + kWidth), 1e-12);
  EXPECT_GT((plain - want).abs().max().item<double>(), 1e-2);
}

TEST(SinkWindow, RefusesPositionsThatDoNotKnowTheCache) {
  test::expect_error(ErrorKind::spec, "is causal", [] {
    rig_of(R"({"type": "attention", "n_heads": 2, "pattern": {"type": "sink_window", "width": 4}})",
           8, false);
  });
}

/// Heads of [H, T, D] as attention takes them: [T, H, D].
Tensor tokens_first(const Tensor& x) {
  return x.transpose(0, 1).contiguous();
}

TEST(Dilated, GoldenTwoBranches) {
  register_mechanisms();
  for (const bool causal : {true, false}) {
    spec::Scope scope;
    scope.causal = causal;
    const auto part = spec::read_part(
        spec::Slot::pattern,
        {{"type", "dilated"}, {"segments", Json{4, 8}}, {"dilations", Json{1, 2}}}, scope);
    const auto run = [&](at::ScalarType type) {
      ops::ScoreOptions how{.scale = 1 / std::sqrt(2.0), .causal = causal};
      how.visibility = std::make_shared<PatternVisibility>(part.as<PatternConfig>(),
                                                           PatternSite{0, 2, 8, causal});
      return ops::attention(tokens_first(gen({2, 8, 2}, .7, .1).to(type)),
                            {{tokens_first(gen({2, 8, 2}, .5, .4).to(type)),
                              tokens_first(gen({2, 8, 2}, .9, -.2).to(type)), 0}},
                            0, how)
          .transpose(0, 1);
    };
    if (!causal) {
      ops::expect_both([&](at::ScalarType t) { return run(t)[0][1]; },
                       tensor({0.26059255, 0.20129551}), 1e-8);
      continue;
    }
    const Tensor head0 =
        tensor({-0.19866933, 0.64421769, 0.55100374, 0.61559728, 0.00312869, -0.06545826,
                -0.51029400, -0.12160791, 0.31398079, 0.58117067, 0.61175668, 0.20146355,
                -0.26360126, -0.24694697, 0.37592435, 0.34480813},
               {8, 2});
    ops::expect_both([&](at::ScalarType t) { return run(t)[0]; }, head0, 1e-8);
    const std::pair<int64_t, std::vector<double>> rows[] = {{0, {0.99802665, 0.57119687}},
                                                            {1, {0.31872729, -0.22135563}},
                                                            {7, {-0.05191860, -0.10043004}}};
    for (const auto& [row, want] : rows)
      ops::expect_both([&, r = row](at::ScalarType t) { return run(t)[1][r]; }, tensor(want), 1e-8);
  }
}

// Unit vectors as values give the weights of the keys; of a key's weight, each of the branches that
// see it has its share.
TEST(Dilated, GoldenWeightsOfABranch) {
  register_mechanisms();
  const auto pattern = [](const Json& segments, const Json& dilations) {
    return spec::read_part(spec::Slot::pattern,
                           {{"type", "dilated"}, {"segments", segments}, {"dilations", dilations}},
                           {});
  };
  const auto both = pattern(Json::array({4, 8}), Json::array({1, 2})),
             first = pattern(Json::array({4}), Json::array({1}));
  const auto &who = both.as<PatternConfig>(), &branch = first.as<PatternConfig>();
  const PatternSite site{0, 2, 8, true};
  Tensor share = at::zeros({8, 8}, at::kDouble);
  for (int64_t i = 0; i < 8; ++i)
    for (int64_t j = 0; j <= i; ++j)
      if (const int64_t times = who.multiplicity(site, 0, i, j); times > 0)
        share[i][j] =
            static_cast<double>(branch.multiplicity(site, 0, i, j)) / static_cast<double>(times);
  ops::expect_both(
      [&](at::ScalarType type) {
        ops::ScoreOptions how{.scale = 1 / std::sqrt(2.0), .causal = true};
        how.visibility = std::make_shared<PatternVisibility>(who, site);
        const Tensor values = at::eye(8, at::kDouble).unsqueeze(1).expand({8, 2, 8}).contiguous();
        const Tensor weights =
            ops::attention(tokens_first(gen({2, 8, 2}, .7, .1).to(type)),
                           {{tokens_first(gen({2, 8, 2}, .5, .4).to(type)), values.to(type), 0}}, 0,
                           how)
                .select(1, 0);
        return (weights * share.to(type)).sum(1);
      },
      tensor({.5, 1, 0.59486701, 1, 0.30552473, 1, 0.33135276, 1}), 1e-8);
}

TEST(Prefix, EachDocumentHasItsOwn) {
  const MixerUnderTest rig = rig_of(
      R"({"type": "attention", "n_heads": 2, "position": "rope", "pattern": "prefix"})", 8, true);
  MixerUnderTest both =
      rig_of(R"({"type": "attention", "n_heads": 2, "position": "rope"})", 8, false);
  MixerUnderTest causal =
      rig_of(R"({"type": "attention", "n_heads": 2, "position": "rope"})", 8, true);
  both.values = causal.values = rig.values;
  const Tensor x = gen({18, 8}, 0.7, 0.2);
  Batch two = Batch::of(at::zeros({2, 9}, at::kLong));
  two.segments[0].prefix = 4;
  two.segments[1].prefix = 9;
  const Tensor got = rig.forward(x, two, at::kDouble);
  // inside a prefix attention is bidirectional, after it causal
  expect_near(got.narrow(0, 0, 4), both.forward(x.narrow(0, 0, 4), batch_of(4), at::kDouble),
              1e-12);
  expect_near(got.narrow(0, 4, 5),
              causal.forward(x.narrow(0, 0, 9), batch_of(9), at::kDouble).narrow(0, 4, 5), 1e-12);
  expect_near(got.narrow(0, 9, 9), both.forward(x.narrow(0, 9, 9), batch_of(9), at::kDouble),
              1e-12);
  const at::NoGradGuard no_gradients;
  // float32's rounding, relative to the largest value
  expect_near(rig.forward(x, two, at::kFloat), got, 2e-6 * got.abs().max().item<double>());
}

TEST(Patterns, TheKernelReadsNoKeyOutsideOfTheRanges) {
  register_mechanisms();
  const at::NoGradGuard no_gradients;
  constexpr int64_t kTokens = 3000;
  for (const char* json : {R"({"type": "chunked", "size": 100})",
                           R"({"type": "sink_window", "first": 4, "width": 100})",
                           R"({"type": "longformer", "width": 100, "global_tokens": [5]})",
                           R"({"type": "big_bird", "block": 20, "random": 0})",
                           R"({"type": "dilated", "segments": [100], "dilations": [1]})"}) {
    const auto part =
        spec::read_part(spec::Slot::pattern, spec::parse_json(json, "test"), spec::Scope{});
    ops::ScoreOptions how{.scale = 0.5};
    how.visibility = std::make_shared<PatternVisibility>(part.as<PatternConfig>(),
                                                         PatternSite{0, 2, kTokens, true});
    Tensor k = gen({kTokens, 1, 8}, 0.5, 0.4).to(at::kFloat),
           v = gen({kTokens, 1, 8}, 0.9, 0.1).to(at::kFloat);
    const Tensor q = gen({1, 2, 8}, 0.7, 0.2).to(at::kFloat);
    const Tensor want = ops::attention(q, {{k, v, 0}}, kTokens - 1, how);
    // far from the query, the first and the last tokens: blocks that nobody asks for
    k.narrow(0, 600, 1500).fill_(std::nan(""));
    v.narrow(0, 600, 1500).fill_(std::nan(""));
    EXPECT_TRUE(at::equal(ops::attention(q, {{k, v, 0}}, kTokens - 1, how), want)) << json;
  }
}

}  // namespace
}  // namespace tessera::nn::pattern_test
