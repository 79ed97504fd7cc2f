#include "tessera/kernels/basic/rowwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/basic/rowwise.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_ROWWISE_ONCE
#define TESSERA_KERNELS_ROWWISE_ONCE
namespace tessera::kernels {

struct NormProblem {
  const float* x;
  int64_t d;
  const float* weight;
  const float* bias;
  float weight_offset, eps;
  float* y;
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_ROWWISE_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// body(i, count) over [0, n) in steps of whole vectors, count < kLanes in the last one only
template <class Body>
HWY_INLINE void for_vectors(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += kLanes) body(i, std::min<int64_t>(kLanes, n - i));
}

// sum over i of f(x[i]) in double; f sees zeros above the end of the row, and must be 0 there
template <class F>
HWY_INLINE double row_sum(const float* x, int64_t d, const F& f) {
  V64 low = hn::Zero(F64());
  V64 high = hn::Zero(F64());
  for_vectors(d, [&](int64_t i, int64_t count) HWY_ATTR {
    const V32 v = load_upto(x + i, count);
    low = hn::Add(low, f(lower_doubles(v), 0, count));
    high = hn::Add(high, f(upper_doubles(v), kLanes / 2, count));
  });
  return sum_of_doubles(hn::Add(low, high));
}

// weight + offset of elements i .. i + count
HWY_INLINE V32 gain(const NormProblem& p, int64_t i, int64_t count) {
  return hn::Add(load_upto(p.weight + i, count), all(p.weight_offset));
}

void rms_norm_rows(const NormProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = p.x + row * p.d;
    float* y = p.y + row * p.d;
    const double squares =
        row_sum(x, p.d, [](V64 v, int64_t, int64_t) HWY_ATTR { return hn::Mul(v, v); });
    const double mean = squares / static_cast<double>(p.d);
    const V32 r = all(static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(p.eps))));
    for_vectors(p.d, [&](int64_t i, int64_t count) HWY_ATTR {
      V32 v = hn::Mul(load_upto(x + i, count), r);
      if (p.weight) v = hn::Mul(v, gain(p, i, count));
      store_upto(v, y + i, count);
    });
  }
}

void layer_norm_rows(const NormProblem& p, int64_t begin, int64_t end) {
  const F64 d64;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = p.x + row * p.d;
    float* y = p.y + row * p.d;
    const double n = static_cast<double>(p.d);
    const double mean = row_sum(x, p.d, [](V64 v, int64_t, int64_t) HWY_ATTR { return v; }) / n;
    const V64 mean_v = hn::Set(d64, mean);
    // lanes past the end hold 0, not the mean: leave them out
    const double squares = row_sum(x, p.d, [&](V64 v, int64_t lane, int64_t count) HWY_ATTR {
      const V64 centred = hn::Sub(v, mean_v);
      const auto inside =
          hn::FirstN(d64, static_cast<size_t>(std::clamp<int64_t>(count - lane, 0, kLanes / 2)));
      return hn::IfThenElseZero(inside, hn::Mul(centred, centred));
    });
    const V64 r = hn::Set(d64, 1.0 / std::sqrt(squares / n + static_cast<double>(p.eps)));
    for_vectors(p.d, [&](int64_t i, int64_t count) HWY_ATTR {
      const V32 v = load_upto(x + i, count);
      // centred in double: a mean far larger than the deviation costs no digits
      V32 out = from_doubles(hn::Mul(hn::Sub(lower_doubles(v), mean_v), r),
                             hn::Mul(hn::Sub(upper_doubles(v), mean_v), r));
      if (p.weight) out = hn::Mul(out, gain(p, i, count));
      if (p.bias) out = hn::Add(out, load_upto(p.bias + i, count));
      store_upto(out, y + i, count);
    });
  }
}

void act_range(Activation kind, const float* x, int64_t n, float* y) {
  with_activation(kind, [&]<Activation k>() HWY_ATTR {
    for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
      store_upto(activate<k>(load_upto(x + i, count)), y + i, count);
    });
  });
}

void glu_range(Activation kind, const float* gate, const float* up, int64_t n, float* y) {
  with_activation(kind, [&]<Activation k>() HWY_ATTR {
    for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
      const V32 g = activate<k>(load_upto(gate + i, count));
      store_upto(hn::Mul(g, load_upto(up + i, count)), y + i, count);
    });
  });
}

void softcap_range(float* x, int64_t n, float cap) {
  for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V32 u = hn::Div(load_upto(x + i, count), all(cap));
    store_upto(hn::Mul(activate<Activation::tanh>(u), all(cap)), x + i, count);
  });
}

void add_range(const float* x, float* y, int64_t n) {
  for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    store_upto(hn::Add(load_upto(y + i, count), load_upto(x + i, count)), y + i, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread

int64_t rows_per_task(int64_t d) {
  return 1 + kGrain / std::max<int64_t>(1, d);
}

}  // namespace

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(layer_norm_rows);
HWY_EXPORT(act_range);
HWY_EXPORT(glu_range);
HWY_EXPORT(softcap_range);
HWY_EXPORT(add_range);

void rms_norm(const float* x,
              int64_t rows,
              int64_t d,
              const float* weight,
              float weight_offset,
              float eps,
              float* y) {
  cap_targets();
  const NormProblem problem{x, d, weight, nullptr, weight_offset, eps, y};
  parallel_for(rows, rows_per_task(d), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rms_norm_rows)(problem, begin, end);
  });
}

void layer_norm(const float* x,
                int64_t rows,
                int64_t d,
                const float* weight,
                const float* bias,
                float weight_offset,
                float eps,
                float* y) {
  cap_targets();
  const NormProblem problem{x, d, weight, bias, weight_offset, eps, y};
  parallel_for(rows, rows_per_task(d), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(layer_norm_rows)(problem, begin, end);
  });
}

void act(Activation kind, const float* x, int64_t n, float* y) {
  cap_targets();
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(act_range)(kind, x + begin, end - begin, y + begin);
  });
}

void glu(Activation kind, const float* gate, const float* up, int64_t n, float* y) {
  cap_targets();
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(glu_range)(kind, gate + begin, up + begin, end - begin, y + begin);
  });
}

void softcap(float* x, int64_t n, float cap) {
  require(cap > 0, "softcap", "cap = {}; expected a positive number", cap);
  cap_targets();
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(softcap_range)(x + begin, end - begin, cap);
  });
}

void add(const float* x, float* y, int64_t n) {
  cap_targets();
  parallel_for(n, 4 * kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)(x + begin, y + begin, end - begin);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
