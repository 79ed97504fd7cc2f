#include "tessera/kernels/attention/scattered_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/scattered_attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/attention_inl.h"
#include "tessera/kernels/attention/attention_tiles.h"
#include "tessera/kernels/attention/balanced.h"
#include "tessera/kernels/attention/listed_rows_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_SCATTERED_ATTENTION_ONCE
#define TESSERA_KERNELS_SCATTERED_ATTENTION_ONCE
namespace tessera::kernels {

// A key of a list, and where it lies.
struct LocatedKey {
  const KeySpan* span;
  int64_t position;
  int8_t times;
};

// Keys as floats that stay in a first cache level while all heads take them, and values in a second
// one, of which heads take a few channels of all rows together: their sums stay in registers over
// many rows.
constexpr int64_t kListedFloats = 8192, kListedValues = 32768, kValuesTogether = 64;
constexpr int64_t kListedRows = 64;  // of them at most
// Rows that products of heads read together: a multiple of what products_of_heads() takes at once.
constexpr int64_t kRowsTogether = 8;
// Heads that go through a list together; their scores take this many times its length.
constexpr int64_t kHeadsAtOnce = 16;

// What one query sees of the keys that are there.
struct LocatedKeys {
  std::vector<VisibleKey> visible;
  std::vector<LocatedKey> keys;
  bool counted = false;  // multiplicities other than 1
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_SCATTERED_ATTENTION_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// --- one query of some heads ---------------------------------------------------------------------

// Prefetches rows that are used next into the second cache level, among the products of others.
template <class RowAt>
class RowsAhead {
 public:
  RowsAhead(int64_t rows, int64_t bytes, const RowAt& row_at)
      : row_at_(row_at), lines_((bytes + kLine - 1) / kLine), rows_(rows) {}
  // How often prefetch() will be called.
  void share_among(int64_t calls) { per_call_ = (rows_ * lines_ + calls - 1) / calls; }
  HWY_INLINE void prefetch() {
    for (int64_t i = 0; i < per_call_; ++i, at_ += kLine) {
      if (at_ == end_) {
        if (row_ == rows_) return;
        at_ = row_at_(row_++);
        end_ = at_ + lines_ * kLine;
      }
      __builtin_prefetch(at_, /*write=*/0, /*locality=*/2);
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const RowAt& row_at_;
  int64_t lines_, rows_, per_call_ = 0, row_ = 0;
  const uint8_t *at_ = nullptr, *end_ = nullptr;  // of the row before row_
};

// body(first, n, rows, scales, next): the keys (or values) of a list as floats, a few at a time;
// scales: null where the rows are the numbers themselves
template <bool values, class Body>
HWY_INLINE void for_listed_rows(const Attention& a,
                                const std::vector<LocatedKey>& keys,
                                int64_t g,
                                const Body& body) {
  const int64_t width = values ? a.V : a.K, count = static_cast<int64_t>(keys.size());
  const int64_t at_once =
      std::clamp<int64_t>((values ? kListedValues : kListedFloats) / width / 4 * 4, 4, kListedRows);
  const float* rows[kListedRows];
  float scales[kListedRows];
  float* expanded = scratch<11>(at_once * width);
  const auto stored_row = [&](int64_t j) {
    const auto& [span, position, times] = keys[static_cast<size_t>(j)];
    const int64_t row = position - span->first;
    return values ? static_cast<const uint8_t*>(span->v) + row * span->v_token_stride +
                        g * span->v_head_stride
                  : static_cast<const uint8_t*>(span->k) + row * span->k_token_stride +
                        g * span->k_head_stride;
  };
  for (int64_t first = 0; first < count;) {
    const DType type = keys[static_cast<size_t>(first)].span->type;
    int64_t n = 0;
    for (; n < at_once && first + n < count; ++n) {
      if (keys[static_cast<size_t>(first + n)].span->type != type) break;
      const auto* stored = stored_row(first + n);
      rows[n] = reinterpret_cast<const float*>(stored);
      if (type == DType::f32) continue;
      rows[n] = expanded + n * width;
      expand_rows(type, stored, /*stride=*/0, 1, width, expanded + n * width, scales + n);
    }
    // the rows after these are on their way while these are used
    const auto after = [&](int64_t j) { return stored_row(first + n + j); };
    RowsAhead next(std::min(n, count - first - n), kv_row_bytes(type, width), after);
    body(first, n, rows, has_row_scale(type) ? scales : nullptr, next);
    first += n;
  }
}

// what is added to the scores: logs of multiplicities, the caller's bias; null = nothing
HWY_INLINE const float* listed_bias(const Attention& a,
                                    const LocatedKeys& seen,
                                    int64_t query,
                                    int64_t head) {
  if (!seen.counted && a.bias == nullptr) return nullptr;
  float* bias = scratch<6>(static_cast<int64_t>(seen.keys.size()));
  const float* logs = log_counts();
  const float* added = a.bias == nullptr ? nullptr
                                         : a.bias + head * a.bias_head_stride +
                                               query * a.bias_query_stride - a.kv.begin();
  for (size_t j = 0; j < seen.keys.size(); ++j)
    bias[j] = logs[static_cast<uint8_t>(seen.keys[j].times)] +
              (added == nullptr ? 0 : added[seen.keys[j].position]);
  return bias;
}

// heads [head, head + heads) of one key-value head, which all see the keys of the list
void attend_listed_query(
    const Attention& a, const LocatedKeys& seen, int64_t query, int64_t head, int64_t heads) {
  const int64_t g = head / (a.H / a.G), n = static_cast<int64_t>(seen.keys.size());
  const int64_t stride = partial_floats(a);
  float* total = scratch<4>((1 + heads) * stride);
  float* partials = total + stride;
  float* scores = scratch<3>(heads * n);
  int64_t passes = 0;
  for_listed_heads(heads, [&](auto, int64_t) { ++passes; });
  if (n > 0) {
    const float* q = a.q + query * a.q_token_stride + head * a.q_head_stride;
    for_listed_rows<false>(
        a, seen.keys, g,
        [&](int64_t first, int64_t count, const float* const* rows, const float* scales, auto& next)
            HWY_ATTR {
              next.share_among(passes * ((count + kRowsTogether - 1) / kRowsTogether));
              for_listed_heads(heads, [&](auto some, int64_t h) HWY_ATTR {
                for (int64_t j = 0; j < count; j += kRowsTogether) {
                  next.prefetch();
                  products_of_heads<decltype(some)::value>(
                      q + h * a.q_head_stride, a.q_head_stride, a.K, rows + j,
                      std::min(kRowsTogether, count - j), scores + h * n + first + j, n);
                }
              });
              for (int64_t h = 0; scales != nullptr && h < heads; ++h)
                scale_all(scales, count, scores + h * n + first);
            });
    std::memset(partials, 0, static_cast<size_t>(heads * stride) * sizeof(float));
    for (int64_t h = 0; h < heads; ++h) {
      const SoftmaxPart part =
          exponentials(a, listed_bias(a, seen, query, head + h), n, scores + h * n);
      partials[h * stride + kMaximumAt] = part.maximum;
      partials[h * stride + kSumAt] = part.sum;
      // merge() leaves out what such a head adds up
      if (part.maximum == kMinusInfinity) std::fill_n(scores + h * n, n, 0.0f);
    }
    for_listed_rows<true>(
        a, seen.keys, g,
        [&](int64_t first, int64_t count, const float* const* rows, const float* scales, auto& next)
            HWY_ATTR {
              for (int64_t h = 0; scales != nullptr && h < heads; ++h)
                scale_all(scales, count, scores + h * n + first);
              const int64_t pieces = (a.V + kValuesTogether - 1) / kValuesTogether;
              next.share_among(passes * pieces);
              const float* from[kListedRows];
              for (int64_t c = 0; c < a.V; c += kValuesTogether) {
                for (int64_t j = 0; j < count; ++j) from[j] = rows[j] + c;
                for_listed_heads(heads, [&](auto some, int64_t h) HWY_ATTR {
                  next.prefetch();
                  add_rows_to_heads<decltype(some)::value>(
                      scores + h * n + first, n, from, count, std::min(kValuesTogether, a.V - c),
                      partials + h * stride + kValuesAt + c, stride);
                });
              }
            });
  }
  for (int64_t h = 0; h < heads; ++h) {
    start_total(a, head + h, total);
    if (n > 0) merge(a, partials + h * stride, total);
    finish(a, query, head + h, total);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_listed_query);

namespace {

// where the keys of a list lie
void locate(const Attention& a, LocatedKeys& seen) {
  seen.keys.clear();
  seen.counted = false;
  const KeySpan *span = a.kv.spans, *end = a.kv.spans + a.kv.size;
  for (const auto& [key, times] : seen.visible) {
    while (span != end && span->first + span->count <= key) ++span;
    if (span == end) break;
    if (key < span->first) continue;  // what no span holds is hidden by the caller's contract
    seen.keys.push_back({span, key, times});
    seen.counted |= times != 1;
  }
}

bool same_list(const std::vector<VisibleKey>& x, const std::vector<VisibleKey>& y) {
  return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                    [](const VisibleKey& a, const VisibleKey& b) {
                      return a.key == b.key && a.times == b.times;
                    });
}

// heads [begin, end) of one key-value head, where all heads see the same; `listed`: the query whose
// list `seen` holds
void attend_heads(const Attention& a,
                  int64_t query,
                  int64_t begin,
                  int64_t end,
                  LocatedKeys& seen,
                  int64_t& listed) {
  if (query != listed) {
    a.visible->list(0, a.first_position + query, a.kv.end(), seen.visible);
    locate(a, seen);
    listed = query;
  }
  HWY_DYNAMIC_DISPATCH(attend_listed_query)(a, seen, query, begin, end - begin);
}

// where they do not: those that see the same keys together
void attend_differing_heads(
    const Attention& a, int64_t query, int64_t begin, int64_t end, LocatedKeys& seen) {
  const auto list = [&](int64_t head, std::vector<VisibleKey>& out) {
    a.visible->list(head, a.first_position + query, a.kv.end(), out);
  };
  std::vector<VisibleKey> next;
  list(begin, seen.visible);
  for (int64_t head = begin, to; head < end; head = to) {
    for (to = head + 1; to < end; ++to) {
      list(to, next);
      if (!same_list(next, seen.visible)) break;
    }
    locate(a, seen);
    HWY_DYNAMIC_DISPATCH(attend_listed_query)(a, seen, query, head, to - head);
    seen.visible.swap(next);
  }
}

// Queries and pieces of their heads, of one call.
struct ScatteredItems {
  ScatteredItems(const Attention& a, int64_t queries_heads, int64_t threads)
      : per_group(a.H / a.G),
        // a group of heads is divided only where the threads would have too little
        step(std::clamp<int64_t>(
            (queries_heads + threads - 1) / threads, 1, std::min(per_group, kHeadsAtOnce))),
        pieces((per_group + step - 1) / step),
        count(a.T * a.G * pieces) {}
  int64_t per_group, step, pieces, count;
};

void attend_items(const Attention& a,
                  const ScatteredItems& items,
                  int64_t begin,
                  int64_t end,
                  LocatedKeys& seen) {
  int64_t listed = -1;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t query = balanced(i / (a.G * items.pieces), a.T), g = i / items.pieces % a.G,
                  first = g * items.per_group + i % items.pieces * items.step,
                  last = std::min(first + items.step, (g + 1) * items.per_group);
    if (a.visible->same_for_heads())
      attend_heads(a, query, first, last, seen, listed);
    else
      attend_differing_heads(a, query, first, last, seen);
  }
}

bool is_scattered(const Attention& a) {
  return a.visible != nullptr && a.visible->scattered();
}

void check_scattered(const Attention& a) {
  require(is_scattered(a) && a.far_q == nullptr, "attention",
          "lists of keys are for scattered patterns, without far queries");
}

}  // namespace

void attend_scattered(const Attention& a) {
  check_scattered(a);
  cap_targets();
  const ScatteredItems items(a, a.T * a.H, thread_count());
  parallel_for(items.count, 1, [&](int64_t begin, int64_t end) {
    LocatedKeys seen;
    attend_items(a, items, begin, end, seen);
  });
}

void attend_scattered(const Team& team, const Attention* calls, int64_t count) {
  thread_local LocatedKeys seen;
  int64_t rows = 0, all = 0, before = 0;
  for (int64_t i = 0; i < count; ++i)
    if (is_scattered(calls[i])) {
      check_scattered(calls[i]);
      rows += calls[i].T * calls[i].H;
    }
  if (rows == 0) return;
  cap_targets();
  for (int64_t i = 0; i < count; ++i)
    if (is_scattered(calls[i])) all += ScatteredItems(calls[i], rows, team.size()).count;
  const Team::Share mine = team.share(all);
  for (int64_t i = 0; i < count; ++i) {
    if (!is_scattered(calls[i])) continue;
    const ScatteredItems items(calls[i], rows, team.size());
    attend_items(calls[i], items, std::clamp<int64_t>(mine.begin - before, 0, items.count),
                 std::clamp<int64_t>(mine.end - before, 0, items.count), seen);
    before += items.count;
  }
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
