#include "tessera/kernels/listed_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/listed_attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

float dot(const float* a, const float* b, int64_t n) {
  V32 sum = zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::MulAdd(load(a + i), load(b + i), sum);
  if (i < n) sum = hn::MulAdd(load_part(a + i, n - i), load_part(b + i, n - i), sum);
  return sum_of(sum);
}

// query t, head h: scores, their softmax, the values
void attend_list(const ListedAttention& a, int64_t t, int64_t h) {
  const int64_t g = h / (a.H / a.G), list = t * a.L + (a.L == 1 ? 0 : a.L == a.H ? h : g);
  const int64_t first = list == 0 ? 0 : a.ends[list - 1], n = a.ends[list] - first;
  const ListedKey* keys = a.keys + first;
  const float* q = a.q + (t * a.H + h) * a.K;
  float* out = a.out + (t * a.H + h) * a.V;
  float* scores = scratch<7>(n);
  float maximum = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < n; ++j) {
    const KeySource& source = a.sources[keys[j].source];
    const float* k = source.k + keys[j].index * source.k_token_stride + g * source.k_head_stride;
    scores[j] = a.scale * dot(q, k, a.K) + static_cast<float>(keys[j].bias);
    maximum = std::max(maximum, scores[j]);
  }
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
  const V32 inverse = all(n == 0 ? 0.0f : static_cast<float>(1 / total));
  for (int64_t c = 0; c < a.V; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, a.V - c);
    V32 sum = zero();
    for (int64_t j = 0; j < n; ++j) {
      const KeySource& source = a.sources[keys[j].source];
      const float* v = source.v + keys[j].index * source.v_token_stride + g * source.v_head_stride;
      sum = hn::MulAdd(all(scores[j]), load_upto(v + c, count), sum);
    }
    store_upto(hn::Mul(sum, inverse), out + c, count);
  }
}

void attend_lists(const ListedAttention& a, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) attend_list(a, i / a.H, i % a.H);
}

// y += a x
void add_scaled(float a, const float* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(hn::MulAdd(all(a), load(x + i), load(y + i)), y + i);
  if (i < n)
    store_part(hn::MulAdd(all(a), load_part(x + i, n - i), load_part(y + i, n - i)), y + i, n - i);
}

// query t, head h: p = exp(s - lse), ds = p (do . v - do . o)
void differentiate_list(const ListedAttentionGradient& gradient, int64_t t, int64_t h) {
  const ListedAttention& a = gradient.of;
  const int64_t g = h / (a.H / a.G), list = t * a.L + (a.L == 1 ? 0 : a.L == a.H ? h : g);
  const int64_t first = list == 0 ? 0 : a.ends[list - 1], n = a.ends[list] - first;
  const ListedKey* keys = a.keys + first;
  const float* q = a.q + (t * a.H + h) * a.K;
  const float* dout = gradient.dout + (t * a.H + h) * a.V;
  float* dq = gradient.dq + (t * a.H + h) * a.K;
  std::fill(dq, dq + a.K, 0.0f);
  float* weights = scratch<7>(n);
  for (int64_t j = 0; j < n; ++j) {
    const KeySource& source = a.sources[keys[j].source];
    const float* k = source.k + keys[j].index * source.k_token_stride + g * source.k_head_stride;
    weights[j] = a.scale * dot(q, k, a.K) + static_cast<float>(keys[j].bias);
  }
  const V32 lse = all(a.lse[t * a.H + h]);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    const V32 score = hn::Min(hn::Sub(load_upto(weights + j, count), lse), zero());
    store_upto(exp_negative(score), weights + j, count);
  }
  const float delta = dot(dout, a.out + (t * a.H + h) * a.V, a.V);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t i = keys[j].index, m = keys[j].source;
    const KeySource& source = a.sources[m];
    const float* k = source.k + i * source.k_token_stride + g * source.k_head_stride;
    const float* v = source.v + i * source.v_token_stride + g * source.v_head_stride;
    const float above = dot(dout, v, a.V) - delta;
    const float dscore = a.scale * weights[j] * above;
    if (gradient.dbias != nullptr) gradient.dbias[first + j] = weights[j] * above;
    add_scaled(weights[j], dout, gradient.dv[m] + (i * a.G + g) * a.V, a.V);
    add_scaled(dscore, q, gradient.dk[m] + (i * a.G + g) * a.K, a.K);
    add_scaled(dscore, k, dq, a.K);
  }
}

void differentiate_heads(const ListedAttentionGradient& gradient, int64_t begin, int64_t end) {
  const ListedAttention& a = gradient.of;
  const int64_t per_group = a.H / a.G;
  for (int64_t g = begin; g < end; ++g)
    for (int64_t t = 0; t < a.T; ++t)
      for (int64_t h = g * per_group; h < (g + 1) * per_group; ++h)
        differentiate_list(gradient, t, h);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_lists);
HWY_EXPORT(differentiate_heads);

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
    HWY_DYNAMIC_DISPATCH(differentiate_heads)(gradient, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
