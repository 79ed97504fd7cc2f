// Patterns in the mixers that attend by two maps or through a latent: against direct definitions,
// one score at a time, by every form.
#include <cmath>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::patterned_mixers_test {
namespace {

using ops::gen;

constexpr int64_t kT = 13, kD = 10, kHeads = 2;

/// A pattern, whom it lets see whom (causality aside), and where a query stands when it meets a
/// key.
struct Pattern {
  const char* json;
  std::function<bool(int64_t head, int64_t i, int64_t j)> sees = {};
  std::function<int64_t(int64_t i, int64_t j)> place = [](int64_t i, int64_t) { return i; };
  int64_t keep = 0, first = 0;  // of the state
  bool causal = true;
  int64_t prefix = 0;  // its tokens see each other
};

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {.json = R"({"type": "full"})", .sees = [](int64_t, int64_t, int64_t) { return true; }},
      {.json = R"({"type": "window", "width": 3})",
       .sees = [](int64_t, int64_t i, int64_t j) { return i - j < 3; },
       .keep = 3},
      {.json = R"({"type": "window", "width": 4})",
       .sees = [](int64_t, int64_t i, int64_t j) { return std::abs(i - j) <= 2; },
       .causal = false},
      {.json = R"({"type": "chunked", "size": 4})",
       .sees = [](int64_t, int64_t i, int64_t j) { return i / 4 == j / 4; },
       .keep = 4},
      {.json = R"({"type": "sink_window", "first": 2, "width": 3})",
       .sees = [](int64_t, int64_t i, int64_t j) { return j < 2 || i - j < 3; },
       .place = [](int64_t i, int64_t j) { return j < 2 ? std::min<int64_t>(i, 4) : i; },
       .keep = 3,
       .first = 2},
      {.json = R"({"type": "longformer", "width": 4, "dilations": [1, 3], "global_tokens": [5]})",
       .sees =
           [](int64_t h, int64_t i, int64_t j) {
             const int64_t d = h == 0 ? 1 : 3;
             return i == 5 || j == 5 || (std::abs(i - j) <= 2 * d && (i - j) % d == 0);
           }},
      {.json = R"({"type": "longformer", "width": 2, "global_tokens": [0, 7]})",
       .sees =
           [](int64_t, int64_t i, int64_t j) {
             return i == 0 || j == 0 || i == 7 || j == 7 || std::abs(i - j) <= 1;
           },
       .causal = false},
      {.json = R"({"type": "strided", "stride": 4})",
       .sees = [](int64_t, int64_t i, int64_t j) { return i - j < 4 || (i - j) % 4 == 0; }},
      {.json = R"({"type": "strided", "stride": 4, "combine": "multihead"})",
       .sees = [](int64_t h, int64_t i,
                  int64_t j) { return h == 0 ? i - j < 4 : (i - j) % 4 == 0; }},
      // queries before the first summary see nothing
      {.json = R"({"type": "fixed", "stride": 4, "summary": 1, "combine": "alternate",
                   "self": false})",
       .sees = [](int64_t, int64_t, int64_t j) { return j % 4 == 3; }},
      {.json = R"({"type": "prefix", "length": 5})",
       .sees = [](int64_t, int64_t, int64_t) { return true; },
       .prefix = 5},
  };
  return all;
}

MixerUnderTest with(const Pattern& pattern, std::string text) {
  text.insert(text.size() - 1, R"(, "position": "rope", "pattern": )" + std::string(pattern.json));
  MixerUnderTest m(text, kD, pattern.causal);
  m.scope.layer = 1;
  m.fill();
  return m;
}

/// x turned as it stands at `position`: channels c and c + d / 2 by position 10000^(-2 c / d).
Tensor turned(const Tensor& x, int64_t position) {
  const int64_t half = x.size(0) / 2;
  const Tensor angle = at::pow(10000.0, at::arange(half, at::kDouble) / -half) * position;
  const Tensor a = x.narrow(0, 0, half), b = x.narrow(0, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()});
}

/// sum over the visible j of softmax(score(j)) value(j), [width]; zero where none is visible.
Tensor read(const Pattern& pattern,
            int64_t head,
            int64_t i,
            int64_t width,
            const std::function<double(int64_t j)>& score,
            const std::function<Tensor(int64_t j)>& value) {
  std::vector<double> scores;
  std::vector<Tensor> values;
  for (int64_t j = 0; j < kT; ++j) {
    const bool past = !pattern.causal || j <= i || (i < pattern.prefix && j < pattern.prefix);
    if (!past || !pattern.sees(head, i, j)) continue;
    scores.push_back(score(j));
    values.push_back(value(j));
  }
  if (scores.empty()) return at::zeros({width}, at::kDouble);
  return at::mv(at::stack(values).t(), at::softmax(at::tensor(scores, at::kDouble), 0));
}

double product(const Tensor& a, const Tensor& b) {
  return (a * b).sum().item<double>();
}

void expect_forms(const MixerUnderTest& m,
                  const Pattern& pattern,
                  const Tensor& x,
                  const Tensor& want) {
  if (pattern.causal)
    for (const spec::StateDecl& decl : m.state()) {
      EXPECT_EQ(decl.keep, pattern.keep) << decl.name;
      EXPECT_EQ(decl.first, pattern.first) << decl.name;
    }
  if (pattern.causal && pattern.prefix == 0) return m.expect_everywhere(x, want, 1e-11);
  m.expect(x, want, 1e-11);
  if (!pattern.causal) return;
  // a call may begin behind the prefix, not in it
  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{kT}, {pattern.prefix, 1, 7}})
    ops::expect_near(m.run(x, at::kDouble, calls), want, 1e-11);
  test::expect_error(ErrorKind::input, "prefix", [&] { m.run(x, at::kDouble, {2, kT - 2}); });
}

TEST(PatternedMixers, DifferentialAttentionAgainstTheDefinition) {
  constexpr int64_t kE = 4;
  for (const Pattern& pattern : patterns()) {
    SCOPED_TRACE(pattern.json);
    const MixerUnderTest m = with(pattern, R"({"type": "differential_attention", "n_heads": 2,
        "n_kv_heads": 1, "head_dim": 4, "lambda_init": 0.4,
        "norm": {"type": "rms_norm", "eps": 1e-3}})");
    const Tensor x = gen({kT, kD}, 1.3, 0.2);
    const auto of = [&](const char* name, int64_t heads) {
      return at::matmul(x, m.values.at(name).t()).reshape({kT, heads, -1});
    };
    const Tensor q = of("q.weight", 2 * kHeads), k = of("k.weight", 2), v = of("v.weight", 1);
    const auto term = [&](const char* a, const char* b) {
      return std::exp(product(m.values.at(a), m.values.at(b)));
    };
    const double lambda = term("lambda_q1", "lambda_k1") - term("lambda_q2", "lambda_k2") + 0.4;
    Tensor heads = at::zeros({kT, kHeads, 2 * kE}, at::kDouble);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kT; ++i) {
        Tensor o = at::zeros({2 * kE}, at::kDouble);
        for (int64_t map = 0; map < 2; ++map)
          o = o + (map == 0 ? 1 : -lambda) *
                      read(
                          pattern, h, i, 2 * kE,
                          [&](int64_t j) {
                            return product(turned(q[i][2 * h + map], pattern.place(i, j)),
                                           turned(k[j][map], j)) /
                                   2;
                          },
                          [&](int64_t j) { return v[j][0]; });
        heads[i][h].copy_(o / at::sqrt(o.square().mean() + 1e-3) * m.values.at("norm.weight") *
                          0.6);
      }
    expect_forms(m, pattern, x, at::matmul(heads.flatten(1), m.values.at("o.weight").t()));
  }
}

// Expanded by whole documents, absorbed from a state and by the kernels.
TEST(PatternedMixers, LatentAttentionAgainstTheDefinition) {
  constexpr int64_t kC = 5, kNope = 3, kRope = 4, kV = 6;
  for (const Pattern& pattern : patterns()) {
    SCOPED_TRACE(pattern.json);
    const MixerUnderTest m = with(pattern, R"({"type": "latent_attention", "n_heads": 2,
        "kv_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "v_head_dim": 6,
        "latent_norm": null})");
    const Tensor x = gen({kT, kD}, 1.3, 0.2);
    const Tensor q = at::matmul(x, m.values.at("q.weight").t()).reshape({kT, kHeads, -1}),
                 a = at::matmul(x, m.values.at("kv_a.weight").t());
    const Tensor c = a.narrow(1, 0, kC), r = a.narrow(1, kC, kRope);
    const Tensor k_b = m.values.at("k_b.weight").reshape({kHeads, kC, kNope}),
                 v_b = m.values.at("v_b.weight").reshape({kHeads, kV, kC});
    Tensor heads = at::zeros({kT, kHeads, kV}, at::kDouble);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kT; ++i) {
        const Tensor n = q[i][h].narrow(0, 0, kNope), rotary = q[i][h].narrow(0, kNope, kRope);
        heads[i][h].copy_(read(
            pattern, h, i, kV,
            [&](int64_t j) {
              return (product(n, at::mv(k_b[h].t(), c[j])) +
                      product(turned(rotary, pattern.place(i, j)), turned(r[j], j))) /
                     std::sqrt(7.0);
            },
            [&](int64_t j) { return at::mv(v_b[h], c[j]); }));
      }
    expect_forms(m, pattern, x, at::matmul(heads.flatten(1), m.values.at("o.weight").t()));
  }
}

TEST(PatternedMixers, AbsorbedIsExpanded) {
  for (const Pattern& pattern : patterns()) {
    if (!pattern.causal) continue;
    SCOPED_TRACE(pattern.json);
    const MixerUnderTest m = with(pattern, R"({"type": "latent_attention", "n_heads": 2,
        "q_lora_rank": 5, "kv_lora_rank": 7, "qk_nope_head_dim": 5, "qk_rope_head_dim": 4})");
    const Tensor x = gen({kT, kD}, 1.7, 0.4);
    const Tensor expanded = m.run(x, at::kDouble);
    for (const std::vector<int64_t>& calls : {std::vector<int64_t>{kT}, {5, 1, 6, 1}})
      ops::expect_near(m.run(x, at::kDouble, calls), expanded, 1e-13);
  }
}

// Marks in the batch say the same as positions in the spec, for the documents that have them.
TEST(PatternedMixers, GlobalTokensComeWithTheBatchToo) {
  for (const char* mixer :
       {R"({"type": "differential_attention", "n_heads": 2, "head_dim": 4})",
        R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 5, "qk_nope_head_dim": 3,
            "qk_rope_head_dim": 4})"}) {
    const Pattern given{.json = R"({"type": "longformer", "width": 2, "global_tokens": [4]})",
                        .causal = false};
    const Pattern none{.json = R"({"type": "longformer", "width": 2})", .causal = false};
    const MixerUnderTest m = with(none, mixer);
    const Tensor x = gen({kT, kD}, 1.3, 0.2);
    Batch marked = Batch::of(at::zeros({2, kT}, at::kLong));
    marked.global_N = at::zeros({2 * kT}, at::kBool);
    marked.global_N[kT + 4] = true;
    const Tensor both = m.forward(at::cat({x, x}), marked, at::kDouble);
    ops::expect_near(both.narrow(0, 0, kT), m.run(x, at::kDouble), 1e-12);
    ops::expect_near(both.narrow(0, kT, kT), with(given, mixer).run(x, at::kDouble), 1e-12);
  }
}

TEST(PatternedMixers, RefuseWhatTheyHaveNot) {
  const auto refused = [](std::string text, const char* pattern, const char* position,
                          const char* reason) {
    text.insert(text.size() - 1,
                fmt::format(R"(, "position": {}, "pattern": {})", position, pattern));
    test::expect_error(ErrorKind::spec, reason, [&] { const MixerUnderTest m(text, kD); });
  };
  for (const char* mixer :
       {R"({"type": "differential_attention", "n_heads": 2, "head_dim": 4})",
        R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 5, "qk_nope_head_dim": 3,
            "qk_rope_head_dim": 4})"}) {
    refused(mixer, R"({"type": "longformer", "width": 2, "projections": "separate"})", R"("rope")",
            "set its \"projections\" to \"shared\", or use attention");
    refused(mixer, R"({"type": "longformer", "width": 2, "dilations": [1, 2, 3]})", R"("rope")",
            "3 dilations for 2 heads");
    refused(mixer, R"({"type": "sink_window", "width": 2})", R"("alibi")",
            "pattern sink_window counts positions inside its cache");
    refused(mixer, "null", R"("rope")", "found null; expected a pattern, or \"full\"");
  }
  refused(R"({"type": "attention", "n_heads": 2, "head_dim": 4})", "null", R"("rope")",
          "found null; expected a pattern, or \"full\"");
}

}  // namespace
}  // namespace tessera::nn::patterned_mixers_test
