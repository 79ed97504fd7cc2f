// How attention.cpp cuts its work: tiles of queries, blocks of keys, and partial sums
// of a block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/kernels/attention/attention.h"

namespace tessera::kernels {

constexpr int64_t kKeyBlock =
    256;                       // keys and values of 64 floats: 128 KiB, half a second-level cache
constexpr int kQueryRows = 6;  // query rows that share each load of a key or value
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};
inline Range operator&(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Up to kQueryRows queries of one key-value head: row r of the tile is query (first + r) / n of
// head g n + (first + r) % n, where n = H / G heads share the key-value head.
struct QueryTile {
  int64_t g = 0;
  int64_t rows = 0;
  int64_t query[kQueryRows] = {};
  int64_t head[kQueryRows] = {};
  Range visible[kQueryRows] = {};  // absolute positions
  Range blocks{0, 0};              // key blocks that any row sees ...
  struct Chosen {
    int64_t block;
    Range keys;  // absolute positions that hold all keys of the block that some row sees
  };
  std::vector<Chosen> chosen;  // ... or, with a pattern, their list, ascending

  bool listed = false;
  int64_t block_count() const {
    return listed ? static_cast<int64_t>(chosen.size()) : blocks.end - blocks.begin;
  }
  int64_t block(int64_t i) const {
    return listed ? chosen[static_cast<size_t>(i)].block : blocks.begin + i;
  }
  /// The first chosen block from `block` on.
  std::vector<Chosen>::const_iterator chosen_from(int64_t block) const {
    return std::lower_bound(chosen.begin(), chosen.end(), block,
                            [](const Chosen& c, int64_t b) { return c.block < b; });
  }
  /// Of a chosen block.
  Range keys_of(int64_t block) const { return chosen_from(block)->keys; }
  bool has_block(int64_t block) const {
    if (!listed) return blocks.begin <= block && block < blocks.end;
    const auto from = chosen_from(block);
    return from != chosen.end() && from->block == block;
  }
};

inline Range visible_keys(const Attention& a, int64_t query) {
  const int64_t p = a.first_position + query;
  Range r{a.kv.begin(), a.kv.end()};
  if (a.causal) r.end = std::min(r.end, p + 1);
  if (a.window > 0) r.begin = std::max(r.begin, p - a.window + 1);
  if (a.window > 0 && !a.causal) r.end = std::min(r.end, p + a.window);
  return r;
}

// The blocks in which the pattern lets a row of the tile see something, and the keys there. These
// begin at whole vectors, so that the lanes of a sum depend on positions alone.
inline void choose_blocks(const Attention& a, QueryTile& tile) {
  constexpr int64_t kMostLanes = 16;
  static_assert(kKeyBlock % kMostLanes == 0);
  tile.listed = true;
  const auto add = [&](int64_t head, int64_t from, int64_t to) {
    for (const KeyRange& range : a.visible->ranges(head, from, to)) {
      const Range keys = Range{range.begin, range.end} & Range{0, a.kv.end()};
      if (keys.empty()) continue;
      for (int64_t b = keys.begin / kKeyBlock; b <= (keys.end - 1) / kKeyBlock; ++b) {
        Range here = keys & Range{b * kKeyBlock, (b + 1) * kKeyBlock};
        here.begin = here.begin / kMostLanes * kMostLanes;
        tile.chosen.push_back({b, here});
      }
    }
  };
  const int64_t last = tile.rows - 1;
  if (a.visible->same_for_heads()) {
    add(0, a.first_position + tile.query[0], a.first_position + tile.query[last] + 1);
  } else {
    // rows of a head are one run of queries
    const int64_t heads = std::min(a.H / a.G, tile.rows);
    for (int64_t first = 0; first < heads; ++first) {
      const int64_t final = first + (last - first) / heads * heads;
      add(tile.head[first], a.first_position + tile.query[first],
          a.first_position + tile.query[final] + 1);
    }
  }
  std::stable_sort(
      tile.chosen.begin(), tile.chosen.end(),
      [](const QueryTile::Chosen& x, const QueryTile::Chosen& y) { return x.block < y.block; });
  size_t kept = 0;
  for (const QueryTile::Chosen& c : tile.chosen) {
    if (kept > 0 && tile.chosen[kept - 1].block == c.block) {
      Range& keys = tile.chosen[kept - 1].keys;
      keys = {std::min(keys.begin, c.keys.begin), std::max(keys.end, c.keys.end)};
    } else {
      tile.chosen[kept++] = c;
    }
  }
  tile.chosen.resize(kept);
}

inline int64_t tiles_per_group(const Attention& a) {
  return (a.T * (a.H / a.G) + kQueryRows - 1) / kQueryRows;
}

inline QueryTile make_tile(const Attention& a, int64_t g, int64_t number) {
  const int64_t n = a.H / a.G;
  const int64_t first = number * kQueryRows;
  QueryTile tile;
  tile.g = g;
  tile.rows = std::min<int64_t>(kQueryRows, a.T * n - first);
  Range all{std::numeric_limits<int64_t>::max(), 0};
  for (int64_t r = 0; r < tile.rows; ++r) {
    tile.query[r] = (first + r) / n;
    tile.head[r] = g * n + (first + r) % n;
    tile.visible[r] = visible_keys(a, tile.query[r]);
    if (tile.visible[r].empty()) continue;
    all = {std::min(all.begin, tile.visible[r].begin), std::max(all.end, tile.visible[r].end)};
  }
  if (a.visible != nullptr)
    choose_blocks(a, tile);
  else if (!all.empty())
    tile.blocks = {all.begin / kKeyBlock, (all.end - 1) / kKeyBlock + 1};
  return tile;
}

// blocks that some tile has to do with, ascending
inline std::vector<int64_t> all_blocks(const QueryTile* tiles, int64_t count) {
  std::vector<int64_t> blocks;
  for (int64_t t = 0; t < count; ++t)
    for (int64_t b = 0; b < tiles[t].block_count(); ++b) blocks.push_back(tiles[t].block(b));
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

// What a block of keys gives a row, and what the blocks so far have given: the maximum logit, the
// sum of exp(logit - maximum), and the values weighted likewise, V floats from kValuesAt.
constexpr int64_t kMaximumAt = 0;
constexpr int64_t kSumAt = 1;
constexpr int64_t kValuesAt = 16;
inline int64_t partial_floats(const Attention& a) {
  return kValuesAt + (a.V + 15) / 16 * 16;
}

// body(span, range): the parts of a range of positions that lie together
template <class Body>
inline void for_spans(const KeyValueView& kv, Range keys, const Body& body) {
  const KeySpan* end = kv.spans + kv.size;
  const KeySpan* span = std::upper_bound(
      kv.spans, end, keys.begin,
      [](int64_t position, const KeySpan& s) { return position < s.first + s.count; });
  for (; span != end && span->first < keys.end; ++span)
    body(*span, keys & Range{span->first, span->first + span->count});
}

// whether every position of a range has a key
inline bool all_held(const KeyValueView& kv, Range keys) {
  int64_t held = 0;
  for_spans(kv, keys, [&](const KeySpan&, Range part) { held += part.end - part.begin; });
  return held == keys.end - keys.begin;
}

}  // namespace tessera::kernels
