#include "tessera/kernels/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention_inl.h"
#include "tessera/kernels/attention_tiles.h"
#include "tessera/kernels/scattered_attention.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

void attend_tile(const Attention& a, const QueryTile& tile) {
  const int64_t stride = partial_floats(a);
  float* totals = scratch<4>(2 * kQueryRows * stride);
  float* partials = totals + kQueryRows * stride;
  const float* q = gather_queries(a, tile);
  for (int64_t r = 0; r < tile.rows; ++r) start_total(a, tile.head[r], totals + r * stride);
  for (int64_t b = 0; b < tile.block_count(); ++b) {
    block_partials(a, tile, q, tile.block(b), partials);
    for (int64_t r = 0; r < tile.rows; ++r) merge(a, partials + r * stride, totals + r * stride);
  }
  for (int64_t r = 0; r < tile.rows; ++r) finish(a, tile, r, totals + r * stride);
}

// The same in two steps, for few queries and many keys: blocks on all threads, then the merge.
void attend_block(const Attention& a, const QueryTile& tile, int64_t block, float* partials) {
  block_partials(a, tile, gather_queries(a, tile), block, partials);
}

void attend_start(const Attention& a, const QueryTile& tile, float* totals) {
  for (int64_t r = 0; r < tile.rows; ++r)
    start_total(a, tile.head[r], totals + r * partial_floats(a));
}

void attend_merge(const Attention& a, const QueryTile& tile, const float* partials, float* totals) {
  const int64_t stride = partial_floats(a);
  for (int64_t r = 0; r < tile.rows; ++r) merge(a, partials + r * stride, totals + r * stride);
}

void attend_finish(const Attention& a, const QueryTile& tile, const float* totals) {
  for (int64_t r = 0; r < tile.rows; ++r) finish(a, tile, r, totals + r * partial_floats(a));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_tile);
HWY_EXPORT(attend_block);
HWY_EXPORT(attend_start);
HWY_EXPORT(attend_merge);
HWY_EXPORT(attend_finish);

namespace {

// Tiles in an order that gives equal contiguous shares equal work under a causal mask: first, last,
// second, last but one ...
int64_t balanced(int64_t i, int64_t n) {
  return i % 2 == 0 ? i / 2 : n - 1 - i / 2;
}

void attend_by_tiles(const Attention& a) {
  const int64_t tiles = tiles_per_group(a);
  parallel_for(a.G * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(attend_tile)(a, make_tile(a, i / tiles, balanced(i % tiles, tiles)));
  });
}

// blocks computed before they are merged: enough for any number of threads, and what they leave
// behind, 6 (16 + V) floats each (2 MB for V = 64), does not grow with the keys
constexpr size_t kBlocksAtOnce = 1024;

// The split of the keys among the threads: their blocks of absolute positions, merged in ascending
// order as in attend_tile, so that the numbers are the same.
void attend_by_blocks(const Attention& a) {
  struct Item {
    size_t tile;
    int64_t block;
  };
  std::vector<QueryTile> tiles;
  std::vector<Item> items;
  for (int64_t i = 0; i < a.G * tiles_per_group(a); ++i) {
    tiles.push_back(make_tile(a, i / tiles_per_group(a), i % tiles_per_group(a)));
    for (int64_t b = 0; b < tiles.back().block_count(); ++b)
      items.push_back({tiles.size() - 1, tiles.back().block(b)});
  }
  // as the keys lie in memory, so that all who read a block of them find it in cache
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& x, const Item& y) { return x.block < y.block; });
  const auto size = static_cast<size_t>(kQueryRows * partial_floats(a));
  const size_t at_once = std::min(kBlocksAtOnce, items.size());
  float* partials = scratch<5>(static_cast<int64_t>((at_once + tiles.size()) * size));
  float* totals = partials + at_once * size;
  for (size_t t = 0; t < tiles.size(); ++t)
    HWY_DYNAMIC_DISPATCH(attend_start)(a, tiles[t], totals + t * size);
  for (size_t done = 0; done < items.size(); done += at_once) {
    const size_t n = std::min(at_once, items.size() - done);
    parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        HWY_DYNAMIC_DISPATCH(attend_block)
      (a, tiles[items[done + i].tile], items[done + i].block, partials + i * size);
    });
    for (size_t i = 0; i < n; ++i) {
      const size_t t = items[done + i].tile;
      HWY_DYNAMIC_DISPATCH(attend_merge)(a, tiles[t], partials + i * size, totals + t * size);
    }
  }
  for (size_t t = 0; t < tiles.size(); ++t)
    HWY_DYNAMIC_DISPATCH(attend_finish)(a, tiles[t], totals + t * size);
}

void check_spans(const Attention& a) {
  const KeyValueView& kv = a.kv;
  for (int64_t i = 0; i < kv.size; ++i) {
    const int64_t before =
        i == 0 ? kv.spans[0].first : kv.spans[i - 1].first + kv.spans[i - 1].count;
    const int64_t gap = kv.spans[i].first - before;
    require(kv.spans[i].first >= 0 && kv.spans[i].count > 0 && gap >= 0 &&
                (gap == 0 || (a.visible != nullptr && a.bias == nullptr)),
            "attention", "span {} of {} keys at {} follows one that ends at {}", i,
            kv.spans[i].count, kv.spans[i].first, before);
  }
}

}  // namespace

void attend(const Attention& a) {
  require(a.G > 0 && a.H > 0 && a.H % a.G == 0, "attention",
          "{} key-value heads do not divide {} heads", a.G, a.H);
  require(a.T >= 0 && a.K > 0 && a.V > 0 && a.first_position >= 0 && a.window >= 0 &&
              (a.far_q == nullptr || a.visible != nullptr),
          "attention", "T = {}, K = {}, V = {}, window {}, queries from {}", a.T, a.K, a.V,
          a.window, a.first_position);
  check_spans(a);
  if (a.visible != nullptr && a.visible->scattered()) return attend_scattered(a);
  cap_targets();
  // With few tiles the threads share out the blocks of keys instead; with one query, all heads read
  // a block before the next one. The numbers are the same.
  const int64_t tiles = a.G * tiles_per_group(a);
  const bool few = a.kv.end() - a.kv.begin() >= 2 * kKeyBlock &&
                   (a.T == 1 || (tiles < 4 * thread_count() && thread_count() > 1));
  if (few)
    attend_by_blocks(a);
  else
    attend_by_tiles(a);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
