#include "tessera/kernels/attention/flash_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/flash_forward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/balanced.h"
#include "tessera/kernels/attention/flash_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_FLASH_FORWARD_ONCE
#define TESSERA_KERNELS_FLASH_FORWARD_ONCE
namespace tessera::kernels {

constexpr int64_t kForwardRows = 48;  // scores of a tile: 21 KiB, in the first cache level
constexpr int64_t kForwardKeys = 96;

// What an item of parallel work gets in addition to the attention: tiles of rows of a group.
struct FlashForwardItem {
  int64_t b, g;
  int64_t tile, tiles;   // the first one, and how many
  float *keys, *values;  // of (b, g), packed in blocks of keys
  bool packs;            // the item packs a block when a tile first meets it
  const BiasByDistance* bias;
  MutableHeads out;
  float* lse;
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_FLASH_FORWARD_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

static_assert(kForwardRows % kGroup == 0 && kForwardKeys % kPanel == 0);
constexpr int64_t kScoreStride = tile_stride(kForwardKeys);

int64_t flash_key_floats(const FlashAttention& a) {
  return transposed_floats(a.S, a.K, kForwardKeys);
}
int64_t flash_value_floats(const FlashAttention& a) {
  return column_floats(a.S, a.V, kForwardKeys);
}

// block of (b, g): panels of transposed keys, panels of columns of values
void flash_pack_forward(
    const FlashAttention& a, int64_t b, int64_t g, int64_t block, float* keys, float* values) {
  const int64_t first = block * kForwardKeys, count = std::min(kForwardKeys, a.S - first);
  pack_transposed(a.k.row(b, first, g), a.k.token, count, a.K, keys + first * a.K);
  pack_columns(a.v.row(b, first, g), a.v.token, count, a.V, kForwardKeys,
               values + first * round_up(a.V, kPanel));
}

// The tile's queries times the scale, kGroup rows at a time: to[(r / kGroup) * K * kGroup +
// c * kGroup + r % kGroup]. The last rows of a group are zeros.
HWY_INLINE void pack_queries(const FlashAttention& a, int64_t b, const Tile& tile, float* to) {
  const int64_t n = a.H / a.G, stride = row_stride(a.K);
  float* rows = scratch<19>(kGroup * stride);
  for (int64_t first = 0; first < tile.count; first += kGroup, to += a.K * kGroup) {
    for (int64_t i = 0; i < kGroup; ++i) {
      if (first + i >= tile.count) {
        std::fill_n(rows + i * stride, a.K, 0.0f);
        continue;
      }
      const int64_t r = tile.row + first + i;
      const float* x = a.q.row(b, r / n, tile.g * n + r % n);
      for (int64_t c = 0; c < a.K; c += kLanes)
        store(hn::Mul(load_upto(x + c, a.K - c), all(a.scale)), rows + i * stride + c);
    }
    // by four rows; the last four may hold some once more
    for (int64_t i = 0; i < kGroup; i += 4) {
      const int64_t four = std::min<int64_t>(i, kGroup - 4);
      transpose_four_rows(rows + four * stride, stride, a.K, to + four, kGroup);
    }
  }
}

// scores[r][j] = q[r] . k[j] for the keys that the row's group sees, whole panels
HWY_INLINE void tile_scores(const FlashAttention& a,
                            const Tile& tile,
                            const GroupSpans& seen,
                            const float* q,
                            const float* kt,
                            Expected& soon,
                            float* scores) {
  const float* panels = kt + tile.first * a.K;
  for_seen_panels(seen, tile, soon, [&](int64_t r, int64_t j) HWY_ATTR {
    TileSums sums;
    start_tile<false>(nullptr, 0, sums);
    multiply(q + r * a.K, 1, kGroup, panels + j * a.K, a.K, sums);
    store_tile(sums, scores + r * kScoreStride + j, kScoreStride);
  });
}

// Of the rows of a tile: the largest score so far, the sum of exponentials, and the output before
// its division by that sum.
struct Softmax {
  float maximum[kForwardRows], sum[kForwardRows];
  float* out;
  int64_t out_stride;
};

HWY_INLINE float row_maximum(Span whole, const float* scores) {
  V32 max = all(kMinusInf), max2 = max;
  for (int64_t j = whole.begin; j < whole.end; j += kPanel) {
    max = hn::Max(load(scores + j), max);
    max2 = hn::Max(load(scores + j + kLanes), max2);
  }
  return hn::GetLane(hn::MaxOfLanes(F32(), hn::Max(max, max2)));
}

// The row's sum and output so far, as they are to a larger maximum.
HWY_INLINE void raise_maximum(float after, int64_t r, int64_t width, Softmax& softmax) {
  const float before = softmax.maximum[r];
  softmax.maximum[r] = after;
  if (before == kMinusInf) return;
  const V32 keep = exp_fast(all(before - after));
  float* out = softmax.out + r * softmax.out_stride;
  softmax.sum[r] *= hn::GetLane(keep);
  for (int64_t c = 0; c < width; c += kLanes) store(hn::Mul(load(out + c), keep), out + c);
}

// scores [whole] -> e^(score - maximum), and their sum
HWY_INLINE void exponentials(Span whole, int64_t r, float* scores, Softmax& softmax) {
  if (softmax.maximum[r] == kMinusInf) {
    // a NaN gets lost in Max, though not in the sum below
    for (int64_t j = whole.begin; j < whole.end; ++j) {
      if (std::isnan(scores[j])) softmax.sum[r] = scores[j];
      scores[j] = 0;
    }
    return;
  }
  const V32 shift = all(softmax.maximum[r]);
  V32 total = zero();
  for (int64_t j = whole.begin; j < whole.end; j += kLanes) {
    const V32 e = exp_fast(hn::Sub(load(scores + j), shift));
    store(e, scores + j);
    total = hn::Add(total, e);
  }
  softmax.sum[r] += sum_of(total);
}

// scores -> weights of all rows
HWY_INLINE void tile_weights(const FlashAttention& a,
                             const FlashForwardItem& item,
                             const Tile& tile,
                             const TileMask& mask,
                             const GroupSpans& seen,
                             TileDropout& dropout,
                             float* scores,
                             Softmax& softmax) {
  for (int64_t first = 0; first < tile.count; first += kGroup) {
    const Span whole = whole_panels(seen.of_row(first));
    if (whole.empty()) continue;
    const int64_t end = std::min<int64_t>(first + kGroup, tile.count);
    float maxima[kGroup];
    for (int64_t r = first; r < end; ++r) {
      float* row = scores + r * kScoreStride;
      adjust_scores(a, item.bias->row(item.g, tile.row + r, tile.first),
                    mask.counted ? mask.counts[r] : nullptr, mask.row[r], row, nullptr);
      set_outside(row, whole, mask.row[r], kMinusInf);
      maxima[r - first] = row_maximum(whole, row);
    }
    for (int64_t r = first; r < end; ++r)
      if (maxima[r - first] > softmax.maximum[r]) raise_maximum(maxima[r - first], r, a.V, softmax);
    for (int64_t r = first; r < end; ++r) {
      float* row = scores + r * kScoreStride;
      exponentials(whole, r, row, softmax);
      if (const float* factors = dropout.row(tile.row + r, tile.first, whole))
        multiply_row(whole, factors, row);
    }
    for (int64_t r = end; r < first + kGroup; ++r)
      std::fill(scores + r * kScoreStride + whole.begin, scores + r * kScoreStride + whole.end,
                0.0f);
  }
}

// Blocks of keys that are packed, in order of their first use.
class KeyBlocks {
 public:
  KeyBlocks(const FlashAttention& a, const FlashForwardItem& item)
      : a_(a),
        item_(item),
        ready_(static_cast<size_t>((a.S + kForwardKeys - 1) / kForwardKeys), !item.packs) {}

  void prepare(int64_t block) {
    if (ready(block)) return;
    flash_pack_forward(a_, item_.b, item_.g, block, item_.keys, item_.values);
    ready_[static_cast<size_t>(block)] = true;
  }
  /// Once for each block.
  void expect(int64_t block, Expected& soon) {
    if (block >= static_cast<int64_t>(ready_.size()) || ready(block) || block <= expected_) return;
    expected_ = block;
    const Span keys{block * kForwardKeys, std::min((block + 1) * kForwardKeys, a_.S)};
    expect_rows(a_.k, item_.b, item_.g, 1, keys, a_.K, soon);
    expect_rows(a_.v, item_.b, item_.g, 1, keys, a_.V, soon);
  }

 private:
  bool ready(int64_t block) const { return ready_[static_cast<size_t>(block)]; }

  const FlashAttention& a_;
  const FlashForwardItem& item_;
  std::vector<bool> ready_;
  int64_t expected_ = -1;  // the last block
};

HWY_INLINE void forward_tile(const FlashAttention& a,
                             const FlashForwardItem& item,
                             Tile tile,
                             KeyBlocks& packed,
                             Expected& soon) {
  const FlashShape shape(a);
  float* q = scratch<16>(kForwardRows * a.K);
  float* scores = scratch<18>(kForwardRows * kScoreStride);
  Softmax softmax;
  softmax.out_stride = row_stride(a.V);
  softmax.out = scratch<17>(kForwardRows * softmax.out_stride);
  TileMask mask;
  TileDropout dropout(a, item.b, item.g);
  pack_queries(a, item.b, tile, q);
  std::fill(softmax.out, softmax.out + kForwardRows * softmax.out_stride, 0.0f);
  for (int64_t r = 0; r < tile.count; ++r) {
    const float sink = a.sinks ? a.sinks[item.g * shape.n + (tile.row + r) % shape.n] : kMinusInf;
    softmax.maximum[r] = sink;
    softmax.sum[r] = sink == kMinusInf ? 0.0f : 1.0f;
  }
  const std::vector<int64_t> blocks = blocks_of_rows(a, item.g, tile.row, tile.count, kForwardKeys);
  for (size_t i = 0; i < blocks.size(); ++i) {
    packed.prepare(blocks[i]);
    if (i + 1 < blocks.size()) packed.expect(blocks[i + 1], soon);
    if (i == 0) {
      // what this tile writes, and what the next one reads
      const Span rows{tile.row, tile.row + tile.count},
          next{rows.end, std::min({rows.end + kForwardRows, shape.rows,
                                   (item.tile + item.tiles) * kForwardRows})};
      expect_rows(item.out, item.b, item.g, shape.n, rows, a.V, soon);
      expect_rows(a.q, item.b, item.g, shape.n, next, a.K, soon);
      packed.expect(blocks.back() + 1, soon);
    }
    tile.first = blocks[i] * kForwardKeys;
    mask_tile(a, tile, mask);
    if (mask.seen == Seen::none) continue;
    const GroupSpans seen(mask, tile);
    tile_scores(a, tile, seen, q, item.keys, soon, scores);
    tile_weights(a, item, tile, mask, seen, dropout, scores, softmax);
    add_keys(scores, kScoreStride, seen, tile, item.values + tile.first * round_up(a.V, kPanel),
             a.V, softmax.out, softmax.out_stride, soon);
  }
  for (int64_t r = 0; r < tile.count; ++r) {
    const int64_t query = (tile.row + r) / shape.n,
                  head = item.g * shape.n + (tile.row + r) % shape.n;
    const float sum = softmax.sum[r], inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float* out = softmax.out + r * softmax.out_stride;
    float* to = item.out.row(item.b, query, head);
    for (int64_t c = 0; c < a.V; c += kLanes)
      store_upto(hn::Mul(load(out + c), all(inverse)), to + c, std::min(kLanes, a.V - c));
    item.lse[(item.b * a.H + head) * a.T + query] =
        sum == 0.0f ? kMinusInf : softmax.maximum[r] + std::log(sum);
  }
}

void flash_forward_tiles(const FlashAttention& a, const FlashForwardItem& item) {
  const int64_t rows = FlashShape(a).rows;
  KeyBlocks packed(a, item);
  Expected soon;
  for (int64_t i = item.tile; i < item.tile + item.tiles; ++i) {
    const int64_t row = i * kForwardRows;
    forward_tile(a, item, {item.g, row, std::min(kForwardRows, rows - row), 0, kForwardKeys},
                 packed, soon);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(flash_key_floats);
HWY_EXPORT(flash_value_floats);
HWY_EXPORT(flash_pack_forward);
HWY_EXPORT(flash_forward_tiles);

void check_flash(const FlashAttention& a) {
  require(a.G > 0 && a.H > 0 && a.H % a.G == 0, "flash_attention",
          "{} key-value heads do not divide {} heads", a.G, a.H);
  require(a.B >= 0 && a.T >= 0 && a.S >= 0 && a.K > 0 && a.V > 0 && a.window >= 0 &&
              (a.bias == nullptr || a.bias_size > 0) &&
              (a.documents == nullptr || a.visible == nullptr),
          "flash_attention", "B = {}, T = {}, S = {}, K = {}, V = {}, window {}, {} biases", a.B,
          a.T, a.S, a.K, a.V, a.window, a.bias_size);
}

void flash_forward(const FlashAttention& a, MutableHeads out, float* lse) {
  check_flash(a);
  if (a.B * a.T == 0) return;
  cap_targets();
  const BiasByDistance bias(a);
  const int64_t keys = HWY_DYNAMIC_DISPATCH(flash_key_floats)(a);
  const int64_t values = HWY_DYNAMIC_DISPATCH(flash_value_floats)(a);
  const int64_t tiles = (FlashShape(a).rows + kForwardRows - 1) / kForwardRows;
  const int64_t groups = a.B * a.G, whole = groups / thread_count() * thread_count();
  const auto item = [&](int64_t group, float* k, float* v) {
    return FlashForwardItem{group / a.G, group % a.G, 0, tiles, k, v, true, &bias, out, lse};
  };
  // whole groups, of which a thread packs the keys as it comes to them
  parallel_in_turn(whole, 1, [&](int64_t begin, int64_t end) {
    float *k = scratch<14>(keys), *v = scratch<15>(values);
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(flash_forward_tiles)(a, item(i, k, v));
  });
  // the threads share the tiles of the groups that are left
  const int64_t rest = groups - whole, blocks = (a.S + kForwardKeys - 1) / kForwardKeys;
  float *k = scratch<14>(rest * keys), *v = scratch<15>(rest * values);
  parallel_for(rest * blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = whole + i / blocks;
      HWY_DYNAMIC_DISPATCH(flash_pack_forward)
      (a, group / a.G, group % a.G, i % blocks, k + i / blocks * keys, v + i / blocks * values);
    }
  });
  parallel_in_turn(rest * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      FlashForwardItem one = item(whole + i / tiles, k + i / tiles * keys, v + i / tiles * values);
      one.tile = balanced(i % tiles, tiles), one.tiles = 1, one.packs = false;
      HWY_DYNAMIC_DISPATCH(flash_forward_tiles)(a, one);
    }
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
