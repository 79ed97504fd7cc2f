#include "tessera/kernels/attention/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/attention_inl.h"
#include "tessera/kernels/attention/attention_tiles.h"
#include "tessera/kernels/attention/balanced.h"
#include "tessera/kernels/attention/scattered_attention.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// For few queries and many keys, in steps: blocks on all threads, each for several tiles, then the
// merge. A tile that has nothing to do with the block gets an empty partial.
void attend_block(
    const Attention& a, const QueryTile* tiles, int64_t count, int64_t block, float* partials) {
  int64_t rows = 0;
  for (int64_t t = 0; t < count; ++t) rows += tiles[t].rows;
  float* q = scratch<2>(2 * rows * a.K);
  float* scores = scratch<3>(rows * kScoreStride);
  const int64_t stride = partial_floats(a);
  std::vector<TileBlock> parts;
  for (int64_t t = 0; t < count; ++t) {
    const QueryTile& tile = tiles[t];
    if (tile.has_block(block)) {
      gather_queries(a, tile, q);
      parts.push_back({.tile = &tile, .q = q, .scores = scores, .partials = partials});
      q += 2 * tile.rows * a.K;
      scores += tile.rows * kScoreStride;
    } else {
      for (int64_t r = 0; r < tile.rows; ++r) partials[r * stride + kMaximumAt] = kMinusInfinity;
    }
    partials += tile.rows * stride;
  }
  block_partials(a, parts.data(), static_cast<int64_t>(parts.size()), block, true);
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
  for (int64_t r = 0; r < tile.rows; ++r)
    finish(a, tile.query[r], tile.head[r], totals + r * partial_floats(a));
}

// Neighbouring tiles, which see about the same keys, take a block together: what a block needs is
// read into the near caches once for all of them.
void attend_panel(const Attention& a, const QueryTile* tiles, int64_t count) {
  int64_t rows = 0;
  for (int64_t t = 0; t < count; ++t) rows += tiles[t].rows;
  const int64_t stride = partial_floats(a);
  float* q = scratch<2>(2 * rows * a.K);
  float* scores = scratch<3>(rows * kScoreStride);
  float* totals = scratch<4>(2 * rows * stride);
  float* partials = totals + rows * stride;
  std::vector<int64_t> first_row(static_cast<size_t>(count));
  for (int64_t t = 0, row = 0; t < count; row += tiles[t++].rows) {
    first_row[t] = row;
    gather_queries(a, tiles[t], q + 2 * row * a.K);
    attend_start(a, tiles[t], totals + row * stride);
  }
  std::vector<TileBlock> parts;
  for (const int64_t block : all_blocks(tiles, count)) {
    parts.clear();
    for (int64_t t = 0; t < count; ++t)
      if (const int64_t row = first_row[t]; tiles[t].has_block(block))
        parts.push_back({.tile = &tiles[t],
                         .q = q + 2 * row * a.K,
                         .scores = scores + row * kScoreStride,
                         .partials = partials + row * stride});
    block_partials(a, parts.data(), static_cast<int64_t>(parts.size()), block, false);
    for (const TileBlock& part : parts)
      attend_merge(a, *part.tile, part.partials, totals + (part.partials - partials));
  }
  for (int64_t t = 0; t < count; ++t) attend_finish(a, tiles[t], totals + first_row[t] * stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_panel);
HWY_EXPORT(attend_block);
HWY_EXPORT(attend_start);
HWY_EXPORT(attend_merge);
HWY_EXPORT(attend_finish);

namespace {

// Tiles of a panel: enough rows that the products hide the reading of a block, and whose queries
// and sums stay in the second cache level; and panels for every thread.
int64_t panel_tiles(const Attention& a) {
  constexpr int64_t kRows = 96, kBytes = 64 << 10;
  const int64_t row_bytes = static_cast<int64_t>(sizeof(float)) * (a.K + 2 * partial_floats(a));
  const int64_t rows = std::min(kRows, kBytes / row_bytes);
  const int64_t shares = a.G * tiles_per_group(a) / (4 * thread_count());
  return std::clamp<int64_t>(std::min(rows / kQueryRows, shares), 1, tiles_per_group(a));
}

void attend_by_panels(const Attention& a) {
  const int64_t tiles = tiles_per_group(a), size = panel_tiles(a);
  const int64_t panels = (tiles + size - 1) / size;
  parallel_in_turn(a.G * panels, 1, [&](int64_t begin, int64_t end) {
    std::vector<QueryTile> panel;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = balanced(i % panels, panels) * size;
      panel.clear();
      for (int64_t t = first; t < std::min(first + size, tiles); ++t)
        panel.push_back(make_tile(a, i / panels, t));
      HWY_DYNAMIC_DISPATCH(attend_panel)
      (a, panel.data(), static_cast<int64_t>(panel.size()));
    }
  });
}

// rows of partials computed before they are merged: enough for any number of threads, and their
// results, 16 + V floats each (2 MB for V = 64), do not grow with the keys
constexpr int64_t kRowsAtOnce = 6144;

// The split of the keys among the threads: their blocks of absolute positions, merged in ascending
// order as in attend_panel, so that the numbers are the same.
void attend_by_blocks(const Attention& a) {
  std::vector<QueryTile> tiles;
  std::vector<int64_t> first_row{0};
  for (int64_t i = 0; i < a.G * tiles_per_group(a); ++i) {
    tiles.push_back(make_tile(a, i / tiles_per_group(a), i % tiles_per_group(a)));
    first_row.push_back(first_row.back() + tiles.back().rows);
  }
  const std::vector<int64_t> blocks = all_blocks(tiles.data(), static_cast<int64_t>(tiles.size()));
  const auto n_tiles = static_cast<int64_t>(tiles.size()),
             n_blocks = static_cast<int64_t>(blocks.size());
  const int64_t stride = partial_floats(a), rows = first_row.back();
  const int64_t at_once =
      std::clamp<int64_t>(kRowsAtOnce / rows, 1, std::max<int64_t>(n_blocks, 1));
  // as many tiles as possible read a block together, but all threads have equal shares
  const int64_t parts = std::clamp<int64_t>(8 * thread_count() / at_once, 1, n_tiles);
  float* partials = scratch<5>((at_once + 1) * rows * stride);
  float* totals = partials + at_once * rows * stride;
  for (int64_t t = 0; t < n_tiles; ++t)
    HWY_DYNAMIC_DISPATCH(attend_start)(a, tiles[t], totals + first_row[t] * stride);
  for (int64_t done = 0; done < n_blocks; done += at_once) {
    const int64_t n = std::min(at_once, n_blocks - done);
    parallel_in_turn(n * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i % parts, first = part * n_tiles / parts,
                      last = (part + 1) * n_tiles / parts;
        HWY_DYNAMIC_DISPATCH(attend_block)
        (a, tiles.data() + first, last - first, blocks[done + i / parts],
         partials + (i / parts * rows + first_row[first]) * stride);
      }
    });
    for (int64_t i = 0; i < n; ++i)
      for (int64_t t = 0; t < n_tiles; ++t) HWY_DYNAMIC_DISPATCH(attend_merge)
    (a, tiles[t], partials + (i * rows + first_row[t]) * stride, totals + first_row[t] * stride);
  }
  for (int64_t t = 0; t < n_tiles; ++t)
    HWY_DYNAMIC_DISPATCH(attend_finish)(a, tiles[t], totals + first_row[t] * stride);
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

void check(const Attention& a) {
  require(a.G > 0 && a.H > 0 && a.H % a.G == 0, "attention",
          "{} key-value heads do not divide {} heads", a.G, a.H);
  require(a.T >= 0 && a.K > 0 && a.V > 0 && a.first_position >= 0 && a.window >= 0 &&
              (a.far_q == nullptr || a.visible != nullptr),
          "attention", "T = {}, K = {}, V = {}, window {}, queries from {}", a.T, a.K, a.V,
          a.window, a.first_position);
  check_spans(a);
}

// The tiles of several calls, and where the rows of each are in the common memory.
struct TeamTiles {
  std::vector<QueryTile> tiles;
  std::vector<const Attention*> of;
  std::vector<int64_t> totals;  // floats before them
  int64_t floats = 0;
  int64_t size() const { return static_cast<int64_t>(tiles.size()); }
};

// rows of partials of all blocks that are under way
int64_t blocks_at_once(int64_t rows) {
  return std::max<int64_t>(1, kRowsAtOnce / std::max<int64_t>(1, rows));
}

int64_t rows_of(const Attention* calls, int64_t count) {
  int64_t rows = 0;
  for (int64_t i = 0; i < count; ++i) rows += calls[i].T * calls[i].H;
  return rows;
}

// The tiles of all calls. Where one block holds all keys each head may be one tile, so that
// threads have equal shares.
void tiles_of(const Attention* calls, int64_t count, int64_t threads, TeamTiles& all) {
  all.tiles.clear(), all.of.clear(), all.totals.clear();
  bool one_each = true;
  for (int64_t i = 0; i < count; ++i) {
    if (calls[i].visible != nullptr) continue;  // scattered
    for (int64_t g = 0; g < calls[i].G; ++g)
      for (int64_t t = 0; t < tiles_per_group(calls[i]); ++t) {
        all.tiles.push_back(make_tile(calls[i], g, t));
        all.of.push_back(&calls[i]);
        one_each = one_each && all.tiles.back().block_count() <= 1;
      }
  }
  if (one_each && all.size() % threads != 0 && all.size() < 4 * threads) {
    TeamTiles rows;
    for (int64_t t = 0; t < all.size(); ++t)
      for (int64_t r = 0; r < all.tiles[t].rows; ++r) {
        QueryTile& one = rows.tiles.emplace_back(all.tiles[t]);
        rows.of.push_back(all.of[t]);
        one.rows = 1;
        one.query[0] = all.tiles[t].query[r];
        one.head[0] = all.tiles[t].head[r];
        one.visible[0] = all.tiles[t].visible[r];
      }
    all = std::move(rows);
  }
  all.floats = 0;
  for (int64_t t = 0; t < all.size(); ++t) {
    all.totals.push_back(all.floats);
    all.floats += all.tiles[t].rows * partial_floats(*all.of[t]);
  }
}

// Neighbouring tiles of one call that take a block together.
struct TileRange {
  int64_t begin, end;
};

// The tiles of each call in one range, or in some where there would be fewer shares than `wanted`.
std::vector<TileRange> tile_ranges(const TeamTiles& all, int64_t calls, int64_t wanted) {
  std::vector<TileRange> ranges;
  for (int64_t begin = 0, end; begin < all.size(); begin = end) {
    for (end = begin + 1; end < all.size() && all.of[end] == all.of[begin];) ++end;
    const int64_t n = end - begin, parts = std::clamp<int64_t>(wanted / calls, 1, n);
    for (int64_t p = 0; p < parts; ++p)
      ranges.push_back({begin + p * n / parts, begin + (p + 1) * n / parts});
  }
  return ranges;
}

}  // namespace

int64_t team_floats(const Attention* calls, int64_t count, int64_t keys) {
  int64_t widest = 0;
  for (int64_t i = 0; i < count; ++i) widest = std::max(widest, partial_floats(calls[i]));
  const int64_t rows = rows_of(calls, count), blocks = (keys + kKeyBlock - 1) / kKeyBlock;
  return (1 + std::min(blocks_at_once(rows), blocks)) * rows * widest;
}

void attend(Team& team, const Attention* calls, int64_t count, float* memory) {
  thread_local TeamTiles all;
  cap_targets();
  for (int64_t i = 0; i < count; ++i) {
    check(calls[i]);
    require((calls[i].visible == nullptr || calls[i].visible->scattered()) &&
                calls[i].bias == nullptr && calls[i].far_q == nullptr,
            "attention", "a team takes scattered patterns alone, and no biases or far queries");
  }
  attend_scattered(team, calls, count);
  tiles_of(calls, count, team.size(), all);
  if (all.size() == 0) return;
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0, most = 0;
  for (const QueryTile& tile : all.tiles) {
    most = std::max(most, tile.block_count());
    if (tile.block_count() == 0) continue;
    first = std::min(first, tile.blocks.begin);
    last = std::max(last, tile.blocks.end);
  }
  const Team::Share own = team.share(all.size());
  if (most <= 1) {
    // nothing to merge: a tile is one thread's
    for (int64_t t = own.begin; t < own.end; ++t)
      HWY_DYNAMIC_DISPATCH(attend_panel)(*all.of[t], &all.tiles[t], 1);
    return;
  }
  const int64_t at_once = blocks_at_once(rows_of(calls, count));
  float* totals = memory;
  float* partials = memory + all.floats;
  for (int64_t t = own.begin; t < own.end; ++t)
    HWY_DYNAMIC_DISPATCH(attend_start)(*all.of[t], all.tiles[t], totals + all.totals[t]);
  for (int64_t begin = first; begin < last; begin += at_once) {
    const int64_t end = std::min(begin + at_once, last), n = end - begin;
    const std::vector<TileRange> ranges = tile_ranges(all, count, 4 * team.size() / n);
    const auto n_ranges = static_cast<int64_t>(ranges.size());
    const Team::Share mine = team.share(n * n_ranges);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const TileRange range = ranges[i % n_ranges];
      const int64_t block = begin + i / n_ranges;
      const auto *from = all.tiles.data() + range.begin, *to = all.tiles.data() + range.end;
      if (std::any_of(from, to, [&](const QueryTile& tile) { return tile.has_block(block); }))
        HWY_DYNAMIC_DISPATCH(attend_block)
      (*all.of[range.begin], from, range.end - range.begin, block,
       partials + (block - begin) * all.floats + all.totals[range.begin]);
    }
    team.wait();
    for (int64_t block = begin; block < end; ++block)
      for (int64_t t = own.begin; t < own.end; ++t)
        if (all.tiles[t].has_block(block)) HWY_DYNAMIC_DISPATCH(attend_merge)
    (*all.of[t], all.tiles[t], partials + (block - begin) * all.floats + all.totals[t],
     totals + all.totals[t]);
    if (end < last) team.wait();
  }
  for (int64_t t = own.begin; t < own.end; ++t)
    HWY_DYNAMIC_DISPATCH(attend_finish)(*all.of[t], all.tiles[t], totals + all.totals[t]);
}

void attend(const Attention& a) {
  check(a);
  if (a.T == 0) return;
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
    attend_by_panels(a);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
