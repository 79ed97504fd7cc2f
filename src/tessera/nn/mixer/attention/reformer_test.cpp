// The Reformer's attentions as mixers.
#include <limits>

#include "tessera/nn/mixer/attention/local_attention.h"
#include "tessera/nn/mixer/attention/lsh_attention.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/attention/lsh_attention.h"

namespace tessera::nn::reformer_test {
namespace {

using ops::gen;

TEST(LshAttention, IsTheOpOfItsProjections) {
  MixerUnderTest m(R"({"type": "lsh_attention", "n_heads": 2, "chunk": 3, "n_hashes": 2,
      "n_buckets": [4], "seed": 3})",
                   6);
  m.fill({.size = 1});
  const Tensor x = gen({11, 6}, 1.7, 0.4);
  const auto heads = [&](const char* name) {
    return at::matmul(x, m.values[name].t()).reshape({11, 2, 3});
  };
  const ops::Lsh how{3, 1, 0, true, ops::lsh_rotations(RandomKey(3).fold(""), {4}, 2, 2, 3)};
  const Tensor want =
      at::matmul(ops::lsh_attention(heads("qk.weight"), heads("v.weight"), how).reshape({11, 6}),
                 m.values["o.weight"].t());
  ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
}

TEST(LocalAttention, AgainstTheDefinition) {
  constexpr int64_t kD = 6;
  struct Kind {
    int64_t t, chunk, before, after;
    bool causal;
    int64_t pad_to = 0;
  };
  for (const auto& [t, c, before, after, causal, pad_to] :
       {Kind{11, 3, 1, 0, true}, Kind{11, 4, 2, 0, true}, Kind{5, 8, 1, 0, true},
        Kind{11, 3, 1, 0, false}, Kind{12, 3, 1, 1, false}, Kind{3, 8, 1, 1, false},
        Kind{7, 4, 1, 1, false}, Kind{11, 3, 1, 0, false, 6}, Kind{7, 3, 1, 1, false, 12},
        Kind{3, 3, 1, 0, false, 12}}) {
    MixerUnderTest m(fmt::format(R"({{"type": "local_attention", "n_heads": 2, "chunk": {},
        "chunks_before": {}, "chunks_after": {}, "pad_to": {}}})",
                                 c, before, after, pad_to),
                     kD, causal);
    m.fill();
    const Tensor x = gen({t, kD}, 1.3, 0.2);
    const auto heads = [&](const char* name) {
      return at::matmul(x, m.values[name].t()).reshape({x.size(0), 2, 3});
    };
    const Tensor q = heads("q.weight"), k = heads("k.weight"), v = heads("v.weight");
    const int64_t unit = pad_to == 0 ? c : pad_to,
                  chunks = t <= c ? 1 : (t + unit - 1) / unit * unit / c;
    Tensor mixed = at::zeros({t, 2, 3}, at::kDouble);
    for (int64_t i = 0; i < t; ++i) {
      std::vector<int64_t> seen;
      if (!causal && chunks == 1) {
        for (int64_t j = 0; j < t; ++j) seen.push_back(j);
      } else {
        for (int64_t o = -before; o <= after; ++o) {
          int64_t chunk = i / c + o;
          if (causal && chunk < 0) continue;
          chunk = (chunk + chunks) % chunks;
          for (int64_t j = chunk * c; j < std::min(t, (chunk + 1) * c); ++j)
            if (!causal || j <= i) seen.push_back(j);
        }
      }
      const Tensor index = at::tensor(seen, at::kLong);
      for (int64_t h = 0; h < 2; ++h) {
        const Tensor weights =
            at::softmax(at::mv(k.select(1, h).index_select(0, index), q[i][h]) / std::sqrt(3.0), 0);
        mixed[i][h].copy_(at::mv(v.select(1, h).index_select(0, index).t(), weights));
      }
    }
    const Tensor want = at::matmul(mixed.reshape({t, 6}), m.values["o.weight"].t());
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
    if (causal)
      ops::expect_both(
          [&](at::ScalarType type) {
            return m.run(x, type, {2, 1, t - 3});
          },
          want, 1e-12);
  }
}

}  // namespace
}  // namespace tessera::nn::reformer_test
