#include "tessera/kernels/attention/scattered_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/scattered_attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

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

// --- one query of one head -----------------------------------------------------------------------

// body(first, n, rows, scales): the keys (or values) of a list as floats, a few at a time; scales:
// null where the rows are the numbers themselves
template <bool values, class Body>
HWY_INLINE void for_listed_rows(const Attention& a,
                                const std::vector<LocatedKey>& keys,
                                int64_t g,
                                const Body& body) {
  const int64_t width = values ? a.V : a.K, count = static_cast<int64_t>(keys.size());
  const float* rows[kExpandedRows];
  float scales[kExpandedRows];
  float* expanded = scratch<11>(kExpandedRows * width);
  for (int64_t first = 0; first < count;) {
    const DType type = keys[static_cast<size_t>(first)].span->type;
    int64_t n = 0;
    for (; n < kExpandedRows && first + n < count; ++n) {
      const auto& [span, position, times] = keys[static_cast<size_t>(first + n)];
      if (span->type != type) break;
      const int64_t row = position - span->first;
      const auto* stored = values ? static_cast<const uint8_t*>(span->v) +
                                        row * span->v_token_stride + g * span->v_head_stride
                                  : static_cast<const uint8_t*>(span->k) +
                                        row * span->k_token_stride + g * span->k_head_stride;
      rows[n] = reinterpret_cast<const float*>(stored);
      if (type == DType::f32) continue;
      rows[n] = expanded + n * width;
      expand_rows(type, stored, /*stride=*/0, 1, width, expanded + n * width, scales + n);
    }
    body(first, n, rows, has_row_scale(type) ? scales : nullptr);
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

void attend_listed_query(const Attention& a, const LocatedKeys& seen, int64_t query, int64_t head) {
  const int64_t g = head / (a.H / a.G), n = static_cast<int64_t>(seen.keys.size());
  float* total = scratch<4>(2 * partial_floats(a));
  float* partial = total + partial_floats(a);
  start_total(a, head, total);
  if (n > 0) {
    const float* q = a.q + query * a.q_token_stride + head * a.q_head_stride;
    float* scores = scratch<3>(n);
    for_listed_rows<false>(
        a, seen.keys, g,
        [&](int64_t first, int64_t count, const float* const* rows, const float* scales) HWY_ATTR {
          products_of_rows(q, a.K, rows, count, scores + first);
          if (scales != nullptr) scale_all(scales, count, scores + first);
        });
    const SoftmaxPart part = exponentials(a, listed_bias(a, seen, query, head), n, scores);
    std::memset(partial, 0, static_cast<size_t>(partial_floats(a)) * sizeof(float));
    partial[kMaximumAt] = part.maximum;
    partial[kSumAt] = part.sum;
    if (part.maximum != kMinusInfinity)
      for_listed_rows<true>(a, seen.keys, g,
                            [&](int64_t first, int64_t count, const float* const* rows,
                                const float* scales) HWY_ATTR {
                              if (scales != nullptr) scale_all(scales, count, scores + first);
                              add_rows(scores + first, rows, count, a.V, partial + kValuesAt);
                            });
    merge(a, partial, total);
  }
  finish(a, query, head, total);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_listed_query);

namespace {

void locate(const Attention& a, int64_t query, int64_t head, LocatedKeys& seen) {
  a.visible->list(head, a.first_position + query, a.kv.end(), seen.visible);
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

}  // namespace

void attend_scattered(const Attention& a) {
  require(a.visible != nullptr && a.far_q == nullptr, "attention",
          "lists of keys are for scattered patterns, without far queries");
  cap_targets();
  const bool same = a.visible->same_for_heads();
  parallel_for(a.T * a.H, 1, [&](int64_t begin, int64_t end) {
    LocatedKeys seen;
    int64_t listed = -1;  // the query of the list
    for (int64_t i = begin; i < end; ++i) {
      const int64_t query = balanced(i / a.H, a.T), head = i % a.H;
      if (!same || query != listed) locate(a, query, same ? 0 : head, seen);
      listed = query;
      HWY_DYNAMIC_DISPATCH(attend_listed_query)(a, seen, query, head);
    }
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
