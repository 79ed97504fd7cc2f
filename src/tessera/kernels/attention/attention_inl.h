// One block of keys for a tile of queries: scores, their softmax, the weighted values; and the
// merge of blocks. Included once per target.
#if defined(TESSERA_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_ATTENTION_INL_H_
#undef TESSERA_KERNELS_ATTENTION_INL_H_
#else
#define TESSERA_KERNELS_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/kernels/attention/attention_spans_inl.h"
#include "tessera/kernels/attention/attention_tiles.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// A tile and a block of keys: where its work lies, and what its rows see.
struct TileBlock {
  const QueryTile* tile = nullptr;
  const float* q = nullptr;        // its queries, gathered
  float* scores = nullptr;         // [rows, kScoreStride]
  float* partials = nullptr;       // [rows, partial_floats]
  Range some{0, 0}, common{0, 0};  // keys that at least one row sees, and that all do
  bool any_void = false;           // a row has no weights
};

// the queries of a tile, one after another, and then those for far keys -> q
HWY_INLINE void gather_queries(const Attention& a, const QueryTile& tile, float* q) {
  const auto gather = [&](const float* from, float* to) HWY_ATTR {
    for (int64_t r = 0; r < tile.rows; ++r)
      std::memcpy(to + r * a.K,
                  from + tile.query[r] * a.q_token_stride + tile.head[r] * a.q_head_stride,
                  static_cast<size_t>(a.K) * sizeof(float));
  };
  gather(a.q, q);
  if (a.far_q != nullptr) gather(a.far_q, q + tile.rows * a.K);
}

// log of a multiplicity
inline const float* log_counts() {
  static const std::vector<float> table = [] {
    std::vector<float> t{kMinusInfinity};
    for (int64_t m = 1; m <= Visibility::kMostOften; ++m)
      t.push_back(static_cast<float>(std::log(static_cast<double>(m))));
    return t;
  }();
  return table.data();
}

// What the pattern and the caller add to the scores of a block, per row; null = nothing.
struct PatternBias {
  Range seen{0, 0};                   // holds every key that some row sees
  const float* row[kQueryRows] = {};  // of the keys asked for
};

inline Seen seen_by_tile(const Attention& a, const QueryTile& tile, KeyRange keys) {
  const auto ask = [&](int64_t head, int64_t from, int64_t to) {
    return a.visible->tile(head, {a.first_position + from, a.first_position + to}, keys);
  };
  if (a.visible->same_for_heads()) return ask(0, tile.query[0], tile.query[tile.rows - 1] + 1);
  const Seen first = ask(tile.head[0], tile.query[0], tile.query[0] + 1);
  for (int64_t r = 1; r < tile.rows; ++r)
    if (ask(tile.head[r], tile.query[r], tile.query[r] + 1) != first) return Seen::some;
  return first;
}

inline PatternBias pattern_bias(const Attention& a, const QueryTile& tile, Range here) {
  PatternBias out;
  const Seen seen = seen_by_tile(a, tile, {here.begin, here.end});
  if (seen == Seen::none) return out;
  if (seen == Seen::all && a.bias == nullptr) {
    out.seen = here;
    return out;
  }
  float* bias = scratch<6>(kQueryRows * kKeyBlock);
  const float* logs = log_counts();
  const int64_t n = here.end - here.begin;
  Range hull{n, 0};
  for (int64_t r = 0; r < tile.rows; ++r) {
    const bool as_before = r > 0 && tile.query[r] == tile.query[r - 1] &&
                           a.visible->same_for_heads() && a.bias == nullptr;
    if (as_before) {
      out.row[r] = out.row[r - 1];
      continue;
    }
    int8_t counts[kKeyBlock];
    const int64_t query = a.first_position + tile.query[r];
    a.visible->counts(tile.head[r], {query, query + 1}, {here.begin, here.end}, counts, 0);
    float* row = bias + r * kKeyBlock;
    for (int64_t j = 0; j < n; ++j) row[j] = logs[static_cast<uint8_t>(counts[j])];
    int64_t begin = 0, end = n;
    while (begin < end && counts[begin] == 0) ++begin;
    while (end > begin && counts[end - 1] == 0) --end;
    if (begin < end) hull = {std::min(hull.begin, begin), std::max(hull.end, end)};
    if (a.bias != nullptr) {
      const float* added = a.bias + tile.head[r] * a.bias_head_stride +
                           tile.query[r] * a.bias_query_stride - a.kv.begin();
      for (int64_t j = begin; j < end; ++j)
        if (counts[j] != 0) row[j] += added[here.begin + j];
    }
    out.row[r] = row;
  }
  // whole vectors of positions: a sum's lanes depend on these alone
  if (!hull.empty()) out.seen = {here.begin + hull.begin / kLanes * kLanes, here.begin + hull.end};
  return out;
}

// The part of a block for every row of the tile under a pattern (the attention mask). All rows run
// over the same keys; masked ones weigh 0.
HWY_INLINE void pattern_partials(const Attention& a, const TileBlock& part, int64_t block) {
  const QueryTile& tile = *part.tile;
  const float* q = part.q;
  float *scores = part.scores, *partials = part.partials;
  const int64_t stride = partial_floats(a), block_begin = block * kKeyBlock;
  const Range here = tile.keys_of(block);
  const PatternBias bias = pattern_bias(a, tile, here);
  const Range seen = bias.seen;
  if (!seen.empty()) {
    // keys that are not there are hidden, but the sums run over them
    if (!all_held(a.kv, seen))
      for (int64_t r = 0; r < tile.rows; ++r)
        std::memset(scores + r * kScoreStride + seen.begin - block_begin, 0,
                    static_cast<size_t>(seen.end - seen.begin) * sizeof(float));
    const Range far = seen & Range{0, a.far_q != nullptr ? a.far_end : 0};
    if (!far.empty()) query_key_products(a, tile, q + tile.rows * a.K, far, block_begin, scores);
    const Range near{far.empty() ? seen.begin : far.end, seen.end};
    if (!near.empty()) query_key_products(a, tile, q, near, block_begin, scores);
  }
  bool any_void = false;
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* partial = partials + r * stride;
    std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
    SoftmaxPart part{kMinusInfinity, 0};
    if (!seen.empty())
      part =
          exponentials(a, bias.row[r] != nullptr ? bias.row[r] + seen.begin - here.begin : nullptr,
                       seen.end - seen.begin, scores + r * kScoreStride + seen.begin - block_begin);
    partial[kMaximumAt] = part.maximum;
    partial[kSumAt] = part.sum;
    any_void |= part.maximum == kMinusInfinity;
  }
  if (seen.empty()) return;
  if (!any_void) return add_values(a, tile, 0, tile.rows, seen, block_begin, scores, partials);
  for (int64_t r = 0; r < tile.rows; ++r)
    if (partials[r * stride + kMaximumAt] != kMinusInfinity)
      add_values(a, tile, r, 1, seen, block_begin, scores, partials);
}

// Keys of a block that all tiles take together: as many as give 32 KiB of keys, or of values, over
// all heads, which lie next to each other; a near cache holds them until the last tile has used
// them. Four at least, which products() takes at once.
inline int64_t shared_keys(const Attention& a, const TileBlock* parts, int64_t count) {
  constexpr int64_t kBytes = 32 << 10;
  const int64_t heads = parts[count - 1].tile->g - parts[0].tile->g + 1;
  const int64_t key = heads * kv_row_bytes(a.kv.spans[0].type, std::max(a.K, a.V));
  return std::clamp<int64_t>(kBytes / key / 4 * 4, 4, 16);
}

// Keys that the tiles of a panel take one after another: half a first cache level holds them.
inline int64_t near_keys(const Attention& a) {
  constexpr int64_t kBytes = 16 << 10, kPair = 2 * kLanes;
  const int64_t key = static_cast<int64_t>(sizeof(float)) * std::max(a.K, a.V);
  return std::clamp<int64_t>(kBytes / key / kPair * kPair, kPair, kPackedKeys);
}

struct Step {
  const KeySpan* span;
  Range keys;
};

// The steps in which tiles go through a block, first its keys, then its values; and what they ask
// for meanwhile.
class BlockSteps {
 public:
  // keys: what some row sees of the block `here`
  BlockSteps(const Attention& a,
             const TileBlock* parts,
             int64_t count,
             Range keys,
             Range here,
             bool shared)
      : a_(a), g_(parts[0].tile->g), heads_(parts[count - 1].tile->g + 1 - g_) {
    const int64_t size = here.end - here.begin,
                  step = shared ? shared_keys(a, parts, count) : near_keys(a);
    count_ = cut(keys, step, steps_);
    for (int64_t t = 0; t < count; ++t) rows_ += parts[t].tile->rows;
    // with one row per head the products only wait for memory, and asking delays them
    asks_ = shared && rows_ > count;
    // a thread most often takes the next block after this one
    if (asks_) next_count_ = cut({here.end, here.end + size}, step, steps_ + count_);
  }

  int64_t count() const { return count_; }
  const Step& operator[](int64_t i) const { return steps_[i]; }

  /// Rows that are needed two steps after step i of the keys, or of the values, for one is over too
  /// soon; where values are parts of the keys, the keys of the next block.
  Ahead ahead(bool values, int64_t i) const {
    Ahead ahead;
    if (!asks_) return ahead;
    const int64_t n = count_, soon = i + 2 + (values ? n : 0);
    const bool joint = steps_[0].span->v == steps_[0].span->k;
    if (joint && i % 2 == 0)
      ahead = keys(n + (values ? n / 2 : 0) + i / 2);
    else if (!joint && n <= soon && soon < 2 * n)
      ahead = Ahead::values(a_, *steps_[soon - n].span, steps_[soon - n].keys, g_, heads_);
    else if (!joint)
      ahead = keys(soon < n ? soon : soon - n);
    constexpr int64_t kSums = 8;  // in registers at a time
    const Range here = steps_[i].keys;
    ahead.share_among(rows_ * (here.end - here.begin) * (values ? a_.V : a_.K) / (kSums * kLanes));
    return ahead;
  }

 private:
  int64_t cut(Range keys, int64_t step, Step* steps) const {
    int64_t n = 0;
    for_spans(a_.kv, keys, [&](const KeySpan& span, Range part) {
      for (int64_t j = part.begin; j < part.end; j += step)
        steps[n++] = {&span, {j, std::min(j + step, part.end)}};
    });
    return n;
  }
  Ahead keys(int64_t i) const {
    if (i >= count_ + next_count_) return {};
    return Ahead::keys(a_, *steps_[i].span, steps_[i].keys, g_, heads_);
  }

  const Attention& a_;
  int64_t g_, heads_, count_ = 0, next_count_ = 0, rows_ = 0;
  bool asks_ = false;
  Step steps_[2 * kKeyBlock];
};

// which keys of the block the rows of a tile see
HWY_INLINE void look(TileBlock& part, Range here) {
  const QueryTile& tile = *part.tile;
  part.some = {here.end, here.begin};
  part.common = here;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const Range seen = tile.visible[r] & here;
    part.common = part.common & seen;
    if (!seen.empty())
      part.some = {std::min(part.some.begin, seen.begin), std::max(part.some.end, seen.end)};
  }
  if (part.some.empty()) part.some = {here.begin, here.begin};
  if (part.common.empty()) part.common = {here.end, here.end};
}

// scores of a step's keys for the tiles of one key-value head
HWY_INLINE void panel_products(
    const Attention& a, const TileBlock* parts, int64_t count, const Step& step, Range here) {
  const KeySpan& span = *step.span;
  const uint8_t* k = static_cast<const uint8_t*>(span.k) +
                     (step.keys.begin - span.first) * span.k_token_stride +
                     parts[0].tile->g * span.k_head_stride;
  float* packed = scratch<7>(a.K * kPackedKeys);
  for_floats(span.type, k, span.k_token_stride, step.keys.end - step.keys.begin, a.K,
             [&](int64_t first, RowsView rows, const float* scales) HWY_ATTR {
               pack_keys(rows, a.K, packed);
               const int64_t begin = step.keys.begin + first;
               for (int64_t t = 0; t < count; ++t) {
                 const Range seen = parts[t].some & Range{begin, begin + rows.count};
                 if (seen.empty()) continue;
                 float* scores = parts[t].scores + begin - here.begin;
                 packed_products(*parts[t].tile, parts[t].q, a.K, packed,
                                 {seen.begin - begin, seen.end - begin}, scores);
                 for (int64_t r = 0; scales != nullptr && r < parts[t].tile->rows; ++r)
                   scale_all(scales, rows.count, scores + r * kScoreStride);
               }
             });
}

// scores -> weights of all rows, and their partials but for the values
HWY_INLINE void weigh(const Attention& a, TileBlock& part, Range here) {
  const QueryTile& tile = *part.tile;
  const int64_t stride = partial_floats(a);
  part.any_void = false;
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* partial = part.partials + r * stride;
    std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
    const Range seen = tile.visible[r] & here;
    SoftmaxPart sums{kMinusInfinity, 0};
    if (!seen.empty()) {
      const float* bias = a.bias ? a.bias + tile.head[r] * a.bias_head_stride +
                                       tile.query[r] * a.bias_query_stride +
                                       (seen.begin - a.kv.begin())
                                 : nullptr;
      sums = exponentials(a, bias, seen.end - seen.begin,
                          part.scores + r * kScoreStride + seen.begin - here.begin);
    }
    partial[kMaximumAt] = sums.maximum;
    partial[kSumAt] = sums.sum;
    part.any_void |= sums.maximum == kMinusInfinity;
  }
}

// Weighted values of some keys, as floats, for a tile; each row's keys in ascending order: its own
// ones before the common ones, the common, its own after.
HWY_INLINE void tile_values(const Attention& a,
                            const TileBlock& part,
                            Range keys,
                            RowsView values,
                            const float* scales,
                            Ahead* ahead,
                            Range here) {
  const QueryTile& tile = *part.tile;
  const int64_t stride = partial_floats(a);
  const auto add = [&](int64_t r, int64_t count, Range some) HWY_ATTR {
    const int64_t first = some.begin - keys.begin;
    add_value_rows(a, {values.data + first * values.stride, values.stride, some.end - some.begin},
                   scales != nullptr ? scales + first : nullptr, ahead, count,
                   part.scores + r * kScoreStride + some.begin - here.begin,
                   part.partials + r * stride + kValuesAt);
  };
  const auto own = [&](Range some) HWY_ATTR {
    if ((some & keys).empty()) return;
    for (int64_t r = 0; r < tile.rows; ++r) {
      const Range seen = some & keys & tile.visible[r];
      if (!seen.empty() && part.partials[r * stride + kMaximumAt] != kMinusInfinity)
        add(r, 1, seen);
    }
  };
  own({here.begin, part.common.begin});
  const Range common = part.common & keys;
  if (part.any_void)
    own(common);
  else if (!common.empty())
    add(0, tile.rows, common);
  own({part.common.end, here.end});
}

// The same for a step and all tiles. Those of one key-value head share the floats.
HWY_INLINE void step_values(const Attention& a,
                            const TileBlock* parts,
                            int64_t count,
                            const Step& step,
                            Ahead* ahead,
                            Range here) {
  for (int64_t t = 0, end; t < count; t = end) {
    const int64_t g = parts[t].tile->g;
    for (end = t + 1; end < count && parts[end].tile->g == g;) ++end;
    for_values(
        a, *step.span, step.keys, g,
        [&](int64_t first, RowsView values, const float* scales) HWY_ATTR {
          const int64_t begin = step.keys.begin + first;
          for (int64_t u = t; u < end; ++u)
            tile_values(a, parts[u], {begin, begin + values.count}, values, scales, ahead, here);
        });
  }
}

// The same for one tile alone whose rows see the same keys, without floats of them in memory; false
// where it has to go the other way.
HWY_INLINE bool lone_partials(const Attention& a, TileBlock& part, Range here) {
  const Range seen = part.some;
  if (seen.begin != part.common.begin || seen.end != part.common.end || !reads_stored(a))
    return false;
  const QueryTile& tile = *part.tile;
  with_rows(tile.rows, [&](auto rows) HWY_ATTR {
    stored_scores<decltype(rows)::value>(a, tile.g, part.q, seen, here.begin, part.scores);
  });
  weigh(a, part, here);
  if (part.any_void) {
    for (int64_t r = 0; r < tile.rows; ++r)
      if (part.partials[r * partial_floats(a) + kMaximumAt] != kMinusInfinity)
        add_stored_values<1>(a, tile.g, part.scores + r * kScoreStride, seen, here.begin,
                             part.partials + r * partial_floats(a));
    return true;
  }
  with_rows(tile.rows, [&](auto rows) HWY_ATTR {
    add_stored_values<decltype(rows)::value>(a, tile.g, part.scores, seen, here.begin,
                                             part.partials);
  });
  return true;
}

// The part of a block for every row of some tiles, in order of their heads. With `shared` they
// advance together, so that memory is read once, as it lies, whatever the heads.
HWY_INLINE void block_partials(
    const Attention& a, TileBlock* parts, int64_t count, int64_t block, bool shared) {
  if (a.visible != nullptr) {
    for (int64_t t = 0; t < count; ++t) pattern_partials(a, parts[t], block);
    return;
  }
  if (count == 0) return;
  const Range here{block * kKeyBlock, (block + 1) * kKeyBlock};
  Range some{here.end, here.begin};
  for (int64_t t = 0; t < count; ++t) {
    look(parts[t], here);
    if (!parts[t].some.empty())
      some = {std::min(some.begin, parts[t].some.begin), std::max(some.end, parts[t].some.end)};
  }
  if (count == 1 && lone_partials(a, parts[0], here)) return;
  const BlockSteps steps(a, parts, count, some, here, shared);
  for (int64_t i = 0; i < steps.count(); ++i) {
    if (!shared && count > 1) {
      panel_products(a, parts, count, steps[i], here);
      continue;
    }
    Ahead ahead = steps.ahead(false, i);
    for (int64_t t = 0; t < count; ++t) {
      const Range seen = parts[t].some & steps[i].keys;
      if (!seen.empty())
        span_products(a, *parts[t].tile, parts[t].q, *steps[i].span, seen, &ahead,
                      parts[t].scores + seen.begin - here.begin);
    }
  }
  for (int64_t t = 0; t < count; ++t) weigh(a, parts[t], here);
  for (int64_t i = 0; i < steps.count(); ++i) {
    Ahead ahead = steps.ahead(true, i);
    step_values(a, parts, count, steps[i], &ahead, here);
  }
}

// total = total + partial, both brought to the larger maximum
HWY_INLINE void merge(const Attention& a, const float* partial, float* total) {
  const float before = total[kMaximumAt];
  const float here = partial[kMaximumAt];
  if (here == kMinusInfinity) return;
  const float maximum = std::max(before, here);
  const V32 keep = exp_negative(all(before - maximum));
  const V32 gain = exp_negative(all(here - maximum));
  total[kMaximumAt] = maximum;
  total[kSumAt] =
      hn::GetLane(hn::Add(hn::Mul(all(total[kSumAt]), keep), hn::Mul(all(partial[kSumAt]), gain)));
  // the buffers are padded to whole vectors
  for (int64_t c = 0; c < a.V; c += kLanes) {
    const V32 old = hn::Mul(load(total + kValuesAt + c), keep);
    store(hn::MulAdd(load(partial + kValuesAt + c), gain, old), total + kValuesAt + c);
  }
}

// the state before any key: the sink, if there is one
HWY_INLINE void start_total(const Attention& a, int64_t head, float* total) {
  std::memset(total, 0, static_cast<size_t>(partial_floats(a)) * sizeof(float));
  const float sink = a.sinks ? a.sinks[head] : kMinusInfinity;
  total[kMaximumAt] = sink;
  total[kSumAt] = sink == kMinusInfinity ? 0.0f : 1.0f;
}

HWY_INLINE void finish(const Attention& a, int64_t query, int64_t head, const float* total) {
  float* out = a.out + query * a.out_token_stride + head * a.out_head_stride;
  const float sum = total[kSumAt];
  if (a.softmax != nullptr) {
    float* softmax = a.softmax + 2 * (query * a.H + head);
    softmax[0] = total[kMaximumAt];
    softmax[1] = sum;
  }
  for (int64_t c = 0; c < a.V; c += kLanes) {
    const V32 o = sum == 0.0f ? zero() : hn::Div(load(total + kValuesAt + c), all(sum));
    store_upto(o, out + c, std::min<int64_t>(kLanes, a.V - c));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
