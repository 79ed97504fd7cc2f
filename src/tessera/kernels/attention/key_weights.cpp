#include "tessera/kernels/attention/key_weights.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/key_weights.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/attention_inl.h"
#include "tessera/kernels/attention/attention_tiles.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// w_j <- w_j + exp(logit_j - maximum) / sum for the scores of one query of one head
HWY_INLINE void add_row(const Attention& a, const float* softmax, int64_t n, float* s, float* w) {
  const float maximum = softmax[0], sum = softmax[1];
  if (sum == 0) return;  // it saw no key
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    const V32 e = exp_negative(hn::Sub(logits_of(a, load_upto(s + j, count)), all(maximum)));
    store_upto(hn::Add(load_upto(w + j, count), hn::Div(e, all(sum))), w + j, count);
  }
}

// The keys of one block of key-value head g: its tiles in order of their queries.
void add_block(const Attention& a, int64_t g, int64_t block, float* weights) {
  const Range here{block * kKeyBlock, (block + 1) * kKeyBlock};
  float* q = scratch<2>(kQueryRows * a.K);
  float* scores = scratch<3>(kQueryRows * kScoreStride);
  for (int64_t t = 0; t < tiles_per_group(a); ++t) {
    TileBlock part;
    const QueryTile tile = make_tile(a, g, t);
    part.tile = &tile;
    look(part, here);
    if (part.some.empty()) continue;
    gather_queries(a, tile, q);
    query_key_products(a, tile, q, part.some, here.begin, scores);
    for (int64_t r = 0; r < tile.rows; ++r) {
      const Range seen = tile.visible[r] & here;
      if (seen.empty()) continue;
      add_row(a, a.softmax + 2 * (tile.query[r] * a.H + tile.head[r]), seen.end - seen.begin,
              scores + r * kScoreStride + seen.begin - here.begin,
              weights + seen.begin - a.kv.begin());
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(add_block);

void add_key_weights(const Attention& a, float* weights, int64_t stride) {
  require(a.softmax != nullptr && a.visible == nullptr && a.bias == nullptr && a.far_q == nullptr,
          "key_weights", "attention without its softmax, or with a pattern or a bias");
  if (a.T == 0 || a.kv.size == 0) return;
  cap_targets();
  const int64_t first = a.kv.begin() / kKeyBlock,
                blocks = (a.kv.end() + kKeyBlock - 1) / kKeyBlock - first;
  parallel_in_turn(a.G * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(add_block)
    (a, i / blocks, first + i % blocks, weights + i / blocks * stride);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
