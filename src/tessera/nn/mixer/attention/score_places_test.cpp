// Position schemes that act on scores, in every mixer that offers them the place: each against the
// direct definition of both, one score at a time.
#include <algorithm>
#include <cmath>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/nn/mixer/attention/multi_level_attention.h"
#include "tessera/nn/mixer/attention/native_sparse_attention.h"

namespace tessera::nn::score_places_test {
namespace {

using ops::gen;

double scalar_product(const Tensor& a, const Tensor& b) {
  return (a * b).sum().item<double>();
}

/// A query and the keys of one head, by position.
struct Meeting {
  Tensor q;
  std::function<Tensor(int64_t)> key;
  int64_t head, heads, i, j;
  double scale;
  double product() const { return scalar_product(q, key(j)); }
};

/// A scheme and the whole score by its definition; `of` holds its parameters.
struct Scheme {
  const char* json;
  std::function<double(const std::function<Tensor(const char*)>& of, const Meeting& m)> score;
  bool encoder = true, pooled = true;  // where it may stand
  bool by_distance = false, takes_scale = false;
};

const std::vector<Scheme>& schemes() {
  static const std::vector<Scheme> all = {
      {R"({"type": "kerple"})",
       [](const auto& of, const Meeting& m) {
         const auto value = [&](const char* name) {
           return std::max(0.01, of(name)[m.head].template item<double>());
         };
         return m.scale * m.product() -
                value("r1") * std::log1p(value("r2") * static_cast<double>(std::abs(m.i - m.j)));
       },
       true, true, true},
      {R"({"type": "alibi"})",
       [](const auto&, const Meeting& m) {
         const double slope =
             std::exp2(-8 * static_cast<double>(m.head + 1) / static_cast<double>(m.heads));
         return m.scale * m.product() - slope * static_cast<double>(std::abs(m.i - m.j));
       },
       true, true, true},
      {R"({"type": "shaw", "left": 3, "terms": "query_and_key"})",
       [](const auto& of, const Meeting& m) {
         const Tensor row = of("key.weight")[std::clamp<int64_t>(m.j - m.i, -3, 3) + 3];
         return m.scale *
                (m.product() + scalar_product(m.q, row) + scalar_product(m.key(m.j), row));
       },
       true, true, false, true},
      {R"({"type": "decoupled", "variant": "diet_abs", "n_positions": 64, "rank": 3})",
       [](const auto& of, const Meeting& m) {
         return m.scale * m.product() +
                scalar_product(of("q.weight")[m.i][m.head], of("k.weight")[m.j][m.head]);
       }},
      {R"({"type": "deberta", "max_relative": 4})",
       [](const auto& of, const Meeting& m) {
         const int64_t d = m.q.size(0);
         const Tensor row = of("weight")[std::clamp<int64_t>(m.i - m.j + 4, 0, 7)];
         const auto own = [&](const Tensor& x) { return x.narrow(0, m.head * d, d); };
         const Tensor key = own(at::mv(of("key.weight"), row)),
                      query = own(at::mv(of("query.weight"), row) + of("query.bias"));
         return m.scale / std::sqrt(3.0) *
                (m.product() + scalar_product(m.q, key) + scalar_product(m.key(m.j), query));
       },
       true, true, false, true},
      {R"({"type": "cope", "n_positions": 4})",
       [](const auto& of, const Meeting& m) {
         double place = 0;
         for (int64_t l = m.j; l <= m.i; ++l)
           place += 1 / (1 + std::exp(-m.scale * scalar_product(m.q, m.key(l))));
         place = std::min(place, 3.0);
         const double low = std::floor(place);
         const auto z = [&](double p) {
           return scalar_product(m.q, of("weight")[static_cast<int64_t>(p)]);
         };
         return m.scale * m.product() + (place - low) * z(std::ceil(place)) +
                (1 - place + low) * z(low);
       },
       false, false, false, true}};
  return all;
}

/// A mixer with a scheme, all parameters filled.
MixerUnderTest with(const Scheme& scheme, std::string text, int64_t d_model, bool causal = true) {
  text.insert(text.size() - 1, R"(, "position": )" + std::string(scheme.json));
  MixerUnderTest m(text, d_model, causal);
  m.fill();
  return m;
}

double score(const Scheme& scheme, const MixerUnderTest& m, const Meeting& meeting) {
  return scheme.score(
      [&](const char* name) { return m.values.at("position." + std::string(name)); }, meeting);
}

/// sum_n softmax(scores)_n values_n
Tensor mixed(const std::vector<double>& scores, const std::vector<Tensor>& values) {
  return at::mv(at::stack(values).t(), at::softmax(at::tensor(scores, at::kDouble), 0));
}

/// Every projection of x by name, heads apart.
struct Projections {
  const MixerUnderTest& m;
  Tensor x;
  Tensor operator()(const std::string& name, int64_t heads) const {
    return at::matmul(x, m.values.at(name + ".weight").t()).reshape({x.size(0), heads, -1});
  }
};

Tensor out_of(const MixerUnderTest& m, const Tensor& heads_THD) {
  return at::matmul(heads_THD.flatten(1), m.values.at("o.weight").t());
}

TEST(ScorePlaces, DifferentialAttention) {
  constexpr int64_t kT = 9, kE = 3;
  for (const Scheme& scheme : schemes()) {
    SCOPED_TRACE(scheme.json);
    MixerUnderTest m = with(scheme, R"({"type": "differential_attention", "n_heads": 4,
        "n_kv_heads": 2, "head_dim": 3, "lambda_init": 0.4,
        "norm": {"type": "rms_norm", "eps": 1e-3}})",
                            10);
    const Tensor x = gen({kT, 10}, 1.3, 0.2);
    const Projections of{m, x};
    const Tensor q = of("q", 8), k = of("k", 4), v = of("v", 2);
    const auto term = [&](const char* a, const char* b) {
      return std::exp(scalar_product(m.values.at(a), m.values.at(b)));
    };
    const double lambda = term("lambda_q1", "lambda_k1") - term("lambda_q2", "lambda_k2") + 0.4;
    Tensor heads = at::zeros({kT, 4, 2 * kE}, at::kDouble);
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < kT; ++i) {
        Tensor o = at::zeros({2 * kE}, at::kDouble);
        for (int64_t map = 0; map < 2; ++map) {
          std::vector<double> scores;
          std::vector<Tensor> values;
          const auto key = [&](int64_t j) { return k[j][2 * (h / 2) + map]; };
          for (int64_t j = 0; j <= i; ++j) {
            scores.push_back(
                score(scheme, m, {q[i][2 * h + map], key, h, 4, i, j, 1 / std::sqrt(3.0)}));
            values.push_back(v[j][h / 2]);
          }
          o = o + (map == 0 ? 1 : -lambda) * mixed(scores, values);
        }
        heads[i][h].copy_(o / at::sqrt(o.square().mean() + 1e-3) * m.values.at("norm.weight") *
                          0.6);
      }
    m.expect_everywhere(x, out_of(m, heads), 1e-11);
  }
}

TEST(ScorePlaces, LatentAttention) {
  constexpr int64_t kT = 9, kHeads = 2, kNope = 3, kRope = 2, kC = 4;
  for (const Scheme& scheme : schemes()) {
    SCOPED_TRACE(scheme.json);
    MixerUnderTest m = with(scheme, R"({"type": "latent_attention", "n_heads": 2,
        "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 5,
        "latent_norm": null})",
                            8);
    const Tensor x = gen({kT, 8}, 1.3, 0.2);
    const Projections of{m, x};
    const Tensor q = of("q", kHeads), a = of("kv_a", 1).squeeze(1);
    const Tensor c = a.narrow(1, 0, kC), r = a.narrow(1, kC, kRope);
    const Tensor k_b = m.values.at("k_b.weight").reshape({kHeads, kC, kNope}),
                 v_b = m.values.at("v_b.weight").reshape({kHeads, 5, kC});
    Tensor heads = at::zeros({kT, kHeads, 5}, at::kDouble);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kT; ++i) {
        std::vector<double> scores;
        std::vector<Tensor> values;
        const auto key = [&](int64_t j) { return at::cat({at::mv(k_b[h].t(), c[j]), r[j]}); };
        for (int64_t j = 0; j <= i; ++j) {
          scores.push_back(score(scheme, m, {q[i][h], key, h, kHeads, i, j, 1 / std::sqrt(5.0)}));
          values.push_back(at::mv(v_b[h], c[j]));
        }
        heads[i][h].copy_(mixed(scores, values));
      }
    // expanded whole, absorbed from a state and by the kernels
    m.expect_everywhere(x, out_of(m, heads), 1e-11);
  }
}

TEST(ScorePlaces, LocalAttention) {
  struct Kind {
    int64_t t, chunk, before, after;
    bool causal;
  };
  for (const Scheme& scheme : schemes())
    for (const auto& [t, c, before, after, causal] :
         {Kind{11, 3, 1, 0, true}, Kind{5, 8, 1, 0, true}, Kind{12, 3, 1, 1, false},
          Kind{7, 4, 1, 1, false}, Kind{3, 8, 1, 1, false}}) {
      if (!causal && !scheme.encoder) continue;
      SCOPED_TRACE(fmt::format("{}, T {}, chunks of {}", scheme.json, t, c));
      MixerUnderTest m = with(scheme,
                              fmt::format(R"({{"type": "local_attention", "n_heads": 2,
          "chunk": {}, "chunks_before": {}, "chunks_after": {}}})",
                                          c, before, after),
                              6, causal);
      const Tensor x = gen({t, 6}, 1.3, 0.2);
      const Projections of{m, x};
      const Tensor q = of("q", 2), k = of("k", 2), v = of("v", 2);
      const int64_t chunks = (t + c - 1) / c;
      Tensor heads = at::zeros({t, 2, 3}, at::kDouble);
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < t; ++i) {
          std::vector<double> scores;
          std::vector<Tensor> values;
          const auto key = [&](int64_t j) { return k[j][h]; };
          const auto add = [&](int64_t chunk) {
            for (int64_t j = chunk * c; j < std::min(t, (chunk + 1) * c); ++j)
              if (!causal || j <= i) {
                scores.push_back(score(scheme, m, {q[i][h], key, h, 2, i, j, 1 / std::sqrt(3.0)}));
                values.push_back(v[j][h]);
              }
          };
          if (!causal && chunks == 1) {
            add(0);
          } else {
            // in an encoder around the ends, where two neighbours may be one chunk
            for (int64_t o = -before; o <= after; ++o)
              if (!causal || i / c + o >= 0) add((i / c + o + chunks) % chunks);
          }
          heads[i][h].copy_(mixed(scores, values));
        }
      if (causal)
        m.expect_everywhere(x, out_of(m, heads), 1e-11);
      else
        m.expect(x, out_of(m, heads), 1e-11);
    }
}

TEST(ScorePlaces, LocalAttentionTakesValuesToo) {
  Scheme scheme = schemes()[2];
  scheme.json = R"({"type": "shaw", "left": 3, "values": true})";
  MixerUnderTest m = with(scheme, R"({"type": "local_attention", "n_heads": 2, "chunk": 3})", 6);
  const Tensor x = gen({11, 6}, 1.3, 0.2);
  const Projections of{m, x};
  const Tensor q = of("q", 2), k = of("k", 2), v = of("v", 2),
               keys = m.values.at("position.key.weight"),
               own = m.values.at("position.value.weight");
  Tensor heads = at::zeros({11, 2, 3}, at::kDouble);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 11; ++i) {
      std::vector<double> scores;
      std::vector<Tensor> values;
      for (int64_t j = std::max<int64_t>(0, i / 3 - 1) * 3; j <= i; ++j) {
        const int64_t row = std::clamp<int64_t>(j - i, -3, 3) + 3;
        scores.push_back(scalar_product(q[i][h], k[j][h] + keys[row]) / std::sqrt(3.0));
        values.push_back(v[j][h] + own[row]);
      }
      heads[i][h].copy_(mixed(scores, values));
    }
  m.expect_everywhere(x, out_of(m, heads), 1e-11);
}

/// U, V and the affine copies of Z.
struct Gated {
  Tensor u, v;
  std::vector<Tensor> copies;
  Gated(const MixerUnderTest& m, const Tensor& x) {
    const Tensor gamma = m.values.at("gamma");
    const int64_t s = gamma.size(1);
    const Tensor all = at::silu(at::matmul(x, m.values.at("in.weight").t()));
    const int64_t e = (all.size(1) - s) / 2;
    u = all.narrow(1, 0, e), v = all.narrow(1, e, e);
    for (int64_t i = 0; i < gamma.size(0); ++i)
      copies.push_back(all.narrow(1, 2 * e, s) * gamma[i] + m.values.at("beta")[i]);
  }
};

double relu2(double x) {
  return x > 0 ? x * x : 0;
}

TEST(ScorePlaces, Gau) {
  constexpr int64_t kT = 9;
  struct Kind {
    const char *divisor, *weights;
    bool causal;
  };
  for (const Scheme& scheme : schemes())
    for (const auto& [divisor, weights, causal] :
         {Kind{"count", "relu2", true}, Kind{"max_length", "relu2", true},
          Kind{"length", "relu2", false}, Kind{"count", "softmax", true}}) {
      const bool softmax = std::string(weights) == "softmax",
                 growing = causal && !softmax && std::string(divisor) == "count";
      if ((!causal && !scheme.encoder) || (growing && scheme.takes_scale)) continue;
      SCOPED_TRACE(fmt::format("{}, {} {}", scheme.json, divisor, weights));
      MixerUnderTest m =
          with(scheme,
               fmt::format(R"({{"type": "gau", "d_hidden": 6, "d_key": 3,
          "divisor": "{}", "weights": "{}"{}}})",
                           divisor, weights,
                           std::string(divisor) == "max_length" ? R"(, "max_length": 5)" : ""),
               4, causal);
      const Tensor x = gen({kT, 4}, 1.3, 0.2) * 2;
      const Gated p(m, x);
      Tensor sum = at::zeros({kT, 6}, at::kDouble);
      for (int64_t i = 0; i < kT; ++i) {
        const int64_t seen = causal ? i + 1 : kT;
        const double n = std::string(divisor) == "max_length" ? 5 : static_cast<double>(seen);
        std::vector<double> scores;
        std::vector<Tensor> values;
        const auto key = [&](int64_t j) { return p.copies[1][j]; };
        for (int64_t j = 0; j < seen; ++j) {
          scores.push_back(score(
              scheme, m, {p.copies[0][i], key, 0, 1, i, j, softmax ? 1 / std::sqrt(3.0) : 1 / n}));
          values.push_back(p.v[j]);
          if (!softmax) sum[i] += relu2(scores.back()) * p.v[j];
        }
        if (softmax) sum[i].copy_(mixed(scores, values));
      }
      const Tensor want = at::matmul(p.u * sum, m.values.at("out.weight").t());
      if (causal)
        m.expect_everywhere(x, want, 1e-11);
      else
        m.expect(x, want, 1e-11);
    }
}

TEST(ScorePlaces, FlashGau) {
  constexpr int64_t kT = 11;
  for (const Scheme& scheme : schemes())
    for (const int64_t c : {3, 4, 16})
      for (const bool causal : {true, false}) {
        if (!causal && !scheme.encoder) continue;
        SCOPED_TRACE(fmt::format("{}, groups of {}, {}", scheme.json, c, causal));
        MixerUnderTest m = with(
            scheme,
            fmt::format(R"({{"type": "flash_gau", "d_hidden": 6, "d_key": 3, "group": {}}})", c), 4,
            causal);
        const Tensor x = gen({kT, 4}, 1.3, 0.2) * 2;
        const Gated p(m, x);
        const double size = static_cast<double>(c);
        Tensor sum = at::zeros({kT, 6}, at::kDouble);
        const auto key = [&](int64_t j) { return p.copies[1][j]; };
        for (int64_t i = 0; i < kT; ++i)
          for (int64_t j = 0; j < kT; ++j) {
            double weight = 0;
            if (i / c == j / c && (!causal || j <= i))
              weight += relu2(score(scheme, m, {p.copies[0][i], key, 0, 1, i, j, 1 / size}));
            const double linear = scalar_product(p.copies[2][i], p.copies[3][j]);
            if (causal && j / c < i / c) weight += linear / size;
            if (!causal) weight += linear / static_cast<double>(kT);
            sum[i] += weight * p.v[j];
          }
        const Tensor want = at::matmul(p.u * sum, m.values.at("out.weight").t());
        if (causal)
          m.expect_everywhere(x, want, 1e-11);
        else
          m.expect(x, want, 1e-11);
      }
}

TEST(ScorePlaces, NativeSparseAttention) {
  constexpr int64_t kT = 29, kBlock = 4, kStride = 2, kSelect = 4, kWindow = 5;
  for (const Scheme& scheme : schemes()) {
    if (!scheme.pooled) continue;
    SCOPED_TRACE(scheme.json);
    MixerUnderTest m = with(scheme, R"({"type": "native_sparse_attention", "n_heads": 4,
        "n_kv_heads": 2, "block": 4, "stride": 2, "select_block": 4, "n_selected": 4,
        "n_initial": 1, "n_local": 2, "window": 5, "pool": "mean"})",
                            8);
    const auto& config = m.part.as<NativeSparseAttentionConfig>();
    const Tensor x = gen({kT, 8}, 1.3, 0.2);
    const Projections of{m, x};
    const Tensor q = of("q", 4), k = of("k", 2), v = of("v", 2), kw = of("k_window", 2),
                 vw = of("v_window", 2);
    const Tensor gates =
        at::sigmoid(of("gate", 1).squeeze(1) + m.values.at("gate.bias")).reshape({kT, 4, 3});
    Tensor heads = at::zeros({kT, 4, 2}, at::kDouble);
    for (int64_t i = 0; i < kT; ++i)
      for (int64_t g = 0; g < 2; ++g) {
        const auto scored = [&](int64_t h, int64_t j, const Tensor& key) {
          return score(scheme, m,
                       {q[i][h], [&](int64_t) { return key; }, h, 4, i, j, 1 / std::sqrt(2.0)});
        };
        std::vector<double> importance(static_cast<size_t>(config.visible_blocks(i)), 0.0);
        for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
          std::vector<double> scores;
          std::vector<Tensor> values;
          for (int64_t b = 0; b * kStride + kBlock <= i + 1; ++b) {
            const auto pooled = [&](const Tensor& rows) {
              return rows.select(1, g).narrow(0, b * kStride, kBlock).mean(0);
            };
            scores.push_back(scored(h, b * kStride + kBlock - 1, pooled(k)));
            values.push_back(pooled(v));
          }
          if (scores.empty()) continue;
          heads[i][h] += gates[i][h][0] * mixed(scores, values);
          const Tensor weights = at::softmax(at::tensor(scores, at::kDouble), 0);
          for (size_t b = 0; b < scores.size(); ++b)
            importance[b] += weights[static_cast<int64_t>(b)].item<double>();
        }
        const auto chosen = config.selected(i, importance);
        for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
          std::vector<double> scores, recent;
          std::vector<Tensor> values, recent_values;
          for (int64_t j = 0; j <= i; ++j) {
            if (std::count(chosen.begin(), chosen.end(), j / kSelect) > 0) {
              scores.push_back(scored(h, j, k[j][g]));
              values.push_back(v[j][g]);
            }
            if (j > i - kWindow) {
              recent.push_back(scored(h, j, kw[j][g]));
              recent_values.push_back(vw[j][g]);
            }
          }
          heads[i][h] += gates[i][h][1] * mixed(scores, values);
          heads[i][h] += gates[i][h][2] * mixed(recent, recent_values);
        }
      }
    m.expect_everywhere(x, out_of(m, heads), 1e-11);
  }
}

TEST(ScorePlaces, MultiLevelAttention) {
  constexpr int64_t kT = 23;
  for (const Scheme& scheme : schemes())
    for (const bool causal : {true, false}) {
      if (!scheme.pooled) continue;
      SCOPED_TRACE(fmt::format("{}, {}", scheme.json, causal));
      MixerUnderTest m = with(scheme, R"({"type": "multi_level_attention", "n_heads": 4,
          "n_kv_heads": 2, "ratios": [1, 3, 6], "windows": [4, 5]})",
                              8, causal);
      const auto& config = m.part.as<MultiLevelAttentionConfig>();
      const Tensor x = gen({kT, 8}, 1.3, 0.2);
      const Projections of{m, x};
      const Tensor q = of("q", 4), k = of("k", 2), v = of("v", 2);
      Tensor heads = at::zeros({kT, 4, 2}, at::kDouble);
      for (int64_t i = 0; i < kT; ++i) {
        const auto ranges = causal ? config.causal_ranges(i) : config.open_ranges(i, kT);
        for (int64_t h = 0; h < 4; ++h) {
          std::vector<double> scores;
          std::vector<Tensor> values;
          for (size_t l = 0; l < 3; ++l)
            for (int64_t from = ranges[l].begin; from < ranges[l].end; from += config.ratios[l]) {
              const int64_t n = std::min(config.ratios[l], kT - from);
              const auto pooled = [&](const Tensor& rows) {
                return rows.select(1, h / 2).narrow(0, from, n).mean(0);
              };
              const Tensor key = pooled(k);
              scores.push_back(score(scheme, m,
                                     {q[i][h], [&](int64_t) { return key; }, h, 4, i, from + n - 1,
                                      1 / std::sqrt(2.0)}) +
                               std::log(static_cast<double>(config.ratios[l])));
              values.push_back(pooled(v));
            }
          heads[i][h].copy_(mixed(scores, values));
        }
      }
      if (causal)
        m.expect_everywhere(x, out_of(m, heads), 1e-11);
      else
        m.expect(x, out_of(m, heads), 1e-11);
    }
}

TEST(ScorePlaces, LshAttention) {
  // two chunks of which each sees the other: every token sees all others
  constexpr int64_t kT = 8;
  for (const Scheme& scheme : schemes())
    for (const int64_t chunk : {4, 16})
      for (const bool causal : {true, false}) {
        if (!scheme.by_distance) continue;
        SCOPED_TRACE(fmt::format("{}, chunks of {}, {}", scheme.json, chunk, causal));
        MixerUnderTest m = with(scheme,
                                fmt::format(R"({{"type": "lsh_attention", "n_heads": 2,
            "chunk": {}, "n_buckets": [2]}})",
                                            chunk),
                                6, causal);
        const Tensor x = gen({kT, 6}, 1.3, 0.2);
        const Projections of{m, x};
        const Tensor q = of("qk", 2), v = of("v", 2);
        const auto key = [&](int64_t h, int64_t j) {
          return q[j][h] / at::sqrt(q[j][h].square().mean() + 1e-6) / std::sqrt(3.0);
        };
        Tensor heads = at::zeros({kT, 2, 3}, at::kDouble);
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < kT; ++i) {
            std::vector<double> scores;
            std::vector<Tensor> values;
            for (int64_t j = 0; j < (causal ? i : kT); ++j) {
              if (j == i) continue;
              scores.push_back(score(
                  scheme, m, {q[i][h], [&](int64_t at) { return key(h, at); }, h, 2, i, j, 1.0}));
              values.push_back(v[j][h]);
            }
            heads[i][h].copy_(scores.empty() ? v[i][h] : mixed(scores, values));
          }
        m.expect(x, out_of(m, heads), 1e-11);
      }
}

// Long enough that queries go block by block and keys that a block does not see are left out.
TEST(ScorePlaces, CopeCountsTheKeysThatAPatternHides) {
  constexpr int64_t kT = 780, kHeads = 2, kRows = 40;
  using Sees = std::function<bool(int64_t head, int64_t i, int64_t j)>;
  const std::pair<const char*, Sees> patterns[] = {
      // the first tokens see later ones, whose place is 0
      {R"({"type": "prefix", "length": 150})",
       [](int64_t, int64_t i, int64_t j) { return j <= i || (i < 150 && j < 150); }},
      {R"({"type": "window", "width": 150})",
       [](int64_t, int64_t i, int64_t j) { return j <= i && i - j < 150; }},
      {R"({"type": "strided", "stride": 100, "combine": "multihead"})",
       [](int64_t h, int64_t i, int64_t j) {
         return j <= i && (h == 0 ? i - j < 100 : (i - j) % 100 == 0);
       }},
      {R"({"type": "fixed", "stride": 100, "combine": "alternate", "self": false})",
       [](int64_t, int64_t i, int64_t j) { return j <= i && j % 100 == 99; }},
      {R"({"type": "longformer", "width": 40, "global_tokens": [3]})",
       [](int64_t, int64_t i, int64_t j) { return j <= i && (i == 3 || j == 3 || i - j <= 20); }}};
  for (const auto& [pattern, sees] : patterns) {
    SCOPED_TRACE(pattern);
    MixerUnderTest m(fmt::format(R"({{"type": "attention", "n_heads": 2, "pattern": {},
        "position": {{"type": "cope", "n_positions": {}, "per_head": true}}}})",
                                 pattern, kRows),
                     8);
    m.scope.layer = 1;
    m.fill();
    const Tensor x = ops::gen({kT, 8}, 1.3, 0.2);
    const Projections of{m, x};
    const auto heads = [&](const char* name) { return of(name, kHeads).transpose(0, 1); };
    const Tensor q = heads("q"), products = at::matmul(q, heads("k").transpose(1, 2)) / 2;
    // places [H, T, T]: gates of keys j .. i
    const Tensor gates = at::sigmoid(products).tril();
    const Tensor place = gates.flip(-1).cumsum(-1).flip(-1).clamp_max(kRows - 1.0);
    const Tensor z = at::matmul(q, m.values.at("position.weight").transpose(1, 2));
    const Tensor low = place.floor(), part = place - low;
    const Tensor added = part * z.gather(-1, place.ceil().to(at::kLong)) +
                         (1 - part) * z.gather(-1, low.to(at::kLong));
    Tensor hidden = at::ones({kHeads, kT, kT}, at::kBool);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kT; ++i)
        for (int64_t j = 0; j < kT; ++j)
          hidden.data_ptr<bool>()[(h * kT + i) * kT + j] = !sees(h, i, j);
    const Tensor weights =
        at::softmax((products + added).masked_fill(hidden, -1e300), -1).masked_fill(hidden, 0);
    const Tensor want = out_of(m, at::matmul(weights, heads("v")).transpose(0, 1));
    m.expect(x, want, 1e-10);
    for (const std::vector<int64_t>& calls : {std::vector<int64_t>{700, 1, 79}, {260, 260, 260}}) {
      ops::expect_near(m.run(x, at::kDouble, calls), want, 1e-10);
      const at::NoGradGuard no_gradients;
      ops::expect_near(m.run(x, at::kFloat, calls), want, 1e-5);
    }
  }
}

TEST(ScorePlaces, RefusalsNameTheReason) {
  const auto refused = [](const std::string& mixer, const char* position, const char* reason) {
    Scheme scheme{position, {}};
    test::expect_error(ErrorKind::spec, reason, [&] { with(scheme, mixer, 8); });
  };
  const char *values = R"({"type": "shaw", "left": 3, "values": true})",
             *shaw = R"({"type": "shaw", "left": 3})",
             *cope = R"({"type": "cope", "n_positions": 4})";
  const std::string sparse = R"({"type": "native_sparse_attention", "n_heads": 2})",
                    levels = R"({"type": "multi_level_attention", "n_heads": 2})";
  refused(R"({"type": "differential_attention", "n_heads": 2})", values, "which have 4 here");
  refused(R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
      "qk_rope_head_dim": 0})",
          values, "read from the latent");
  for (const std::string& pooled : {sparse, levels}) {
    refused(pooled, values, "set its \"values\" to false");
    refused(pooled, cope, "keys are pooled here");
  }
  refused(R"({"type": "gau", "weights": "softmax"})", values, "which have d_hidden");
  refused(R"({"type": "flash_gau"})", values, "which have d_hidden");
  refused(R"({"type": "gau"})", shaw, "use divisor max_length");
  refused(R"({"type": "gau"})", R"({"type": "alibi", "scaled": true})", "use divisor max_length");
  refused(R"({"type": "lsh_attention", "n_heads": 2})", shaw, "lie anywhere");
  refused(R"({"type": "lsh_attention", "n_heads": 2})", R"({"type": "rope"})", "acts on");
}

}  // namespace
}  // namespace tessera::nn::score_places_test
