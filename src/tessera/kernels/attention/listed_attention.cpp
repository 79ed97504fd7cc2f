#include "tessera/kernels/attention/listed_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/listed_attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/listed_rows_inl.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// rows are gathered this many at a time
constexpr int64_t kRowsAtOnce = 64;
constexpr int64_t kHeadsAtOnce = 16;  // whose gradients a row of keys takes at a time

// n zeros, and room up to whole vectors
HWY_INLINE float* zeros(int64_t n) {
  const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
  float* p = scratch<12>(padded);
  std::fill(p, p + padded, 0.0f);
  return p;
}

// The list of query t and head h.
struct List {
  const ListedKey* keys;
  int64_t first, count, g;  // the number of its first entry; the key-value head

  List(const ListedAttention& a, int64_t t, int64_t h) : g(h / (a.H / a.G)) {
    const int64_t list = t * a.L + (a.L == 1 ? 0 : a.L == a.H ? h : g);
    first = list == 0 ? 0 : a.ends[list - 1];
    count = a.ends[list] - first;
    keys = a.keys + first;
  }
};

// body(j, n, rows): keys (or values) j .. j + n of a list
template <bool values, class Body>
HWY_INLINE void for_rows(const ListedAttention& a, const List& list, const Body& body) {
  const float* rows[kRowsAtOnce];
  for (int64_t j = 0; j < list.count; j += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, list.count - j);
    for (int64_t i = 0; i < n; ++i) {
      const ListedKey& key = list.keys[j + i];
      const KeySource& source = a.sources[key.source];
      rows[i] = values
                    ? source.v + key.index * source.v_token_stride + list.g * source.v_head_stride
                    : source.k + key.index * source.k_token_stride + list.g * source.k_head_stride;
    }
    body(j, n, rows);
  }
}

// s_j = scale q . k_j + bias_j
HWY_INLINE void scores_of(const ListedAttention& a,
                          const List& list,
                          const float* q,
                          float* scores) {
  for_rows<false>(a, list, [&](int64_t j, int64_t n, const float* const* rows) HWY_ATTR {
    products_of_rows(q, a.K, rows, n, scores + j);
  });
  for (int64_t j = 0; j < list.count; ++j)
    scores[j] = a.scale * scores[j] + static_cast<float>(list.keys[j].bias);
}

// query t, head h: scores, their softmax, the values
void attend_list(const ListedAttention& a, int64_t t, int64_t h) {
  const List list(a, t, h);
  const int64_t n = list.count;
  float* out = a.out + (t * a.H + h) * a.V;
  float* scores = scratch<7>(n);
  scores_of(a, list, a.q + (t * a.H + h) * a.K, scores);
  float maximum = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < n; ++j) maximum = std::max(maximum, scores[j]);
  double total = 0;
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    store_upto(exp_negative(hn::Sub(load_upto(scores + j, count), all(maximum))), scores + j,
               count);
  }
  for (int64_t j = 0; j < n; ++j) total += static_cast<double>(scores[j]);
  if (a.lse != nullptr)
    a.lse[t * a.H + h] = n == 0
                             ? -std::numeric_limits<float>::infinity()
                             : static_cast<float>(static_cast<double>(maximum) + std::log(total));
  float* sum = zeros(a.V);
  for_rows<true>(a, list, [&](int64_t j, int64_t count, const float* const* rows) HWY_ATTR {
    add_rows(scores + j, rows, count, a.V, sum);
  });
  const V32 inverse = all(n == 0 ? 0.0f : static_cast<float>(1 / total));
  for (int64_t c = 0; c < a.V; c += kLanes)
    store_upto(hn::Mul(load(sum + c), inverse), out + c, std::min<int64_t>(kLanes, a.V - c));
}

void attend_lists(const ListedAttention& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) attend_list(a, i / a.H, i % a.H);
}

// query t, head h: p = exp(s - lse) and ds = p (do . v - do . o), numbers of the list; dq
void differentiate_list(const ListedAttentionGradient& gradient,
                        const List& list,
                        int64_t t,
                        int64_t h,
                        float* weights,
                        float* dscores) {
  const ListedAttention& a = gradient.of;
  const int64_t n = list.count;
  const float* dout = gradient.dout + (t * a.H + h) * a.V;
  scores_of(a, list, a.q + (t * a.H + h) * a.K, weights);
  const V32 lse = all(a.lse[t * a.H + h]);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    const V32 score = hn::Min(hn::Sub(load_upto(weights + j, count), lse), zero());
    store_upto(exp_negative(score), weights + j, count);
  }
  const float delta = dot(a.out + (t * a.H + h) * a.V, dout, a.V);
  for_rows<true>(a, list, [&](int64_t j, int64_t count, const float* const* rows) HWY_ATTR {
    products_of_rows(dout, a.V, rows, count, dscores + j);
  });
  for (int64_t j = 0; j < n; ++j) {
    const float above = weights[j] * (dscores[j] - delta);
    if (gradient.dbias != nullptr) gradient.dbias[list.first + j] = above;
    dscores[j] = a.scale * above;
  }
  float* dq = gradient.dq + (t * a.H + h) * a.K;
  std::fill_n(dq, a.K, 0.0f);
  for_rows<false>(a, list, [&](int64_t j, int64_t count, const float* const* rows) HWY_ATTR {
    add_rows(dscores + j, rows, count, a.K, dq);
  });
}

// query t, heads [first, first + count) with one list: each key's gradient takes from all of them
// while its row is at hand
void differentiate_heads(const ListedAttentionGradient& gradient,
                         int64_t t,
                         int64_t first,
                         int64_t count) {
  const ListedAttention& a = gradient.of;
  const List list(a, t, first);
  const int64_t n = list.count;
  float* weights = scratch<7>(2 * count * n);
  float* dscores = weights + count * n;
  const float *queries[kHeadsAtOnce], *douts[kHeadsAtOnce];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t h = first + i;
    differentiate_list(gradient, list, t, h, weights + i * n, dscores + i * n);
    queries[i] = a.q + (t * a.H + h) * a.K;
    douts[i] = gradient.dout + (t * a.H + h) * a.V;
  }
  for (int64_t j = 0; j < n; ++j) {
    float of_values[kHeadsAtOnce], of_keys[kHeadsAtOnce];
    for (int64_t i = 0; i < count; ++i)
      of_values[i] = weights[i * n + j], of_keys[i] = dscores[i * n + j];
    const auto [source, index, bias] = list.keys[j];
    const int64_t row = index * a.G + list.g;
    add_rows(of_values, douts, count, a.V, gradient.dv[source] + row * a.V);
    add_rows(of_keys, queries, count, a.K, gradient.dk[source] + row * a.K);
  }
}

void differentiate_groups(const ListedAttentionGradient& gradient, int64_t begin, int64_t end) {
  const ListedAttention& a = gradient.of;
  const int64_t per_group = a.H / a.G, step = a.L == a.H ? 1 : std::min(kHeadsAtOnce, per_group);
  for (int64_t g = begin; g < end; ++g)
    for (int64_t t = 0; t < a.T; ++t)
      for (int64_t h = g * per_group; h < (g + 1) * per_group; h += step)
        differentiate_heads(gradient, t, h, std::min(step, (g + 1) * per_group - h));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_lists);
HWY_EXPORT(differentiate_groups);

namespace {

void check(const ListedAttention& a) {
  require(a.G > 0 && a.H % a.G == 0 && (a.L == 1 || a.L == a.G || a.L == a.H), "listed_attention",
          "{} heads, {} key-value heads, {} lists per query", a.H, a.G, a.L);
}

}  // namespace

void listed_attention(const ListedAttention& a) {
  check(a);
  if (a.T == 0) return;
  cap_targets();
  const int64_t keys = a.ends[a.T * a.L - 1] / (a.T * a.L);
  const int64_t grain = 1 + (int64_t{1} << 14) / (1 + keys * (a.K + a.V));
  parallel_for(a.T * a.H, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(attend_lists)(a, begin, end);
  });
}

void listed_attention_backward(const ListedAttentionGradient& gradient) {
  check(gradient.of);
  require(gradient.dbias == nullptr || gradient.of.L == gradient.of.H, "listed_attention",
          "the gradient of biases with {} lists for {} heads", gradient.of.L, gradient.of.H);
  if (gradient.of.T == 0) return;
  cap_targets();
  parallel_for(gradient.of.G, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(differentiate_groups)(gradient, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
