#include "tessera/kernels/linear/performer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear/performer.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

float half_square(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(sum / 2);
}

// out[r] = exp(scores[r] - shift), max(scores[r], 0) or scores[r], plus eps
void features(const FavorScan& f, const float* scores, float shift, float eps, float* out) {
  for (int64_t r = 0; r < f.M; r += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, f.M - r);
    const V32 s = load_upto(scores + r, count);
    const V32 value = f.exponential ? exp_negative(hn::Sub(s, all(shift)))
                      : f.rectified ? hn::Max(s, zero())
                                    : s;
    store_upto(hn::Add(value, all(eps)), out + r, count);
  }
}

// One head's sums, and the buffers of a token.
struct Head {
  const FavorScan& f;
  int64_t h;
  float* sums;
  float* values;
  float* maximum;
  float* phi;  // [M]
  float* row;  // [V + 1]

  const float* at(const float* base, int64_t t, int64_t width) const {
    return base + (t * f.H + h) * width;
  }

  /// The largest score so far, this key's included; what is summed is scaled to it.
  void raise(float largest) const {
    const bool first = values[f.V] == 0.0f;
    if (first || largest > *maximum) {
      if (!first) {
        const float scale = static_cast<float>(
            std::exp(static_cast<double>(*maximum) - static_cast<double>(largest)));
        for (int64_t i = 0; i < f.M * (f.V + 1); ++i) sums[i] *= scale;
      }
      *maximum = largest;
    }
  }

  void add_key(int64_t t) const {
    const float* scores = at(f.k_scores, t, f.M);
    float shift = 0;
    if (f.exponential) shift = half_square(at(f.k, t, f.K), f.K) + *maximum;
    features(f, scores, shift, 0, phi);
    std::copy_n(at(f.v, t, f.V), f.V, row);
    row[f.V] = 1;
    const int64_t width = f.V + 1;
    for (int64_t r = 0; r < f.M; ++r) {
      const V32 weight = all(phi[r]);
      float* sum = sums + r * width;
      for (int64_t c = 0; c < width; c += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, width - c);
        store_upto(hn::MulAdd(weight, load_upto(row + c, count), load_upto(sum + c, count)),
                   sum + c, count);
      }
    }
    for (int64_t c = 0; c < width; ++c) values[c] += row[c];
  }

  void answer(int64_t t) const {
    const float* scores = at(f.q_scores, t, f.M);
    float shift = 0;
    if (f.exponential)
      shift = half_square(at(f.q, t, f.K), f.K) + *std::max_element(scores, scores + f.M);
    features(f, scores, shift, f.eps, phi);
    double total = 0;
    for (int64_t r = 0; r < f.M; ++r) total += static_cast<double>(phi[r]);
    const V32 flat = all(f.eps * static_cast<float>(total));
    const int64_t width = f.V + 1;
    for (int64_t c = 0; c < width; c += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, width - c);
      V32 sum = hn::Mul(flat, load_upto(values + c, count));
      for (int64_t r = 0; r < f.M; ++r)
        sum = hn::MulAdd(all(phi[r]), load_upto(sums + r * width + c, count), sum);
      store_upto(hn::Mul(sum, all(f.factor)), row + c, count);
    }
    float divisor = row[f.V];
    if (std::abs(divisor) <= f.eps) divisor += 2 * f.eps;
    float* out = f.out + (t * f.H + h) * f.V;
    for (int64_t c = 0; c < f.V; ++c) out[c] = divisor == 0.0f ? 0.0f : row[c] / divisor;
  }
};

void scan_heads(const FavorScan& f, int64_t begin, int64_t end) {
  float* work = scratch<6>(f.M + f.V + 1);
  for (int64_t h = begin; h < end; ++h) {
    const Head head{
        f,    h,         f.sums + h * f.M * (f.V + 1), f.values + h * (f.V + 1), f.maximum + h,
        work, work + f.M};
    const auto largest = [&](int64_t t) {
      const float* scores = head.at(f.k_scores, t, f.M);
      return *std::max_element(scores, scores + f.M);
    };
    if (f.causal) {
      for (int64_t t = 0; t < f.T; ++t) {
        if (f.exponential) head.raise(largest(t));
        head.add_key(t);
        head.answer(t);
      }
      continue;
    }
    if (f.exponential && f.T > 0) {
      *head.maximum = largest(0);
      for (int64_t t = 1; t < f.T; ++t) *head.maximum = std::max(*head.maximum, largest(t));
    }
    for (int64_t t = 0; t < f.T; ++t) head.add_key(t);
    for (int64_t t = 0; t < f.T; ++t) head.answer(t);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(scan_heads);

void favor_scan(const FavorScan& scan) {
  cap_targets();
  parallel_for(scan.H, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scan_heads)(scan, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
