#include "tessera/kernels/weights/quantize_search.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/quantize_search.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

// Products and sums below are rounded one by one, in the order of ggml's, whose bytes follow.

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

using F8 = hn::CappedTag<float, 8>;
using I8x = hn::RebindToSigned<F8>;
using VF = hn::Vec<F8>;
using VX = hn::Vec<I8x>;
using MF = hn::Mask<F8>;
constexpr int kSide = static_cast<int>(hn::MaxLanes(F8()));
constexpr int kMostElements = 32;
constexpr float kNothing = 1e-15F;  // groups of smaller numbers are zeros

HWY_INLINE VF every(float value) {
  return hn::Set(F8(), value);
}

// to nearest even, of numbers below 2^22; above, the same lower bits as ggml's
HWY_INLINE VX nearest_whole(VF v) {
  const I8x d;
  const VX bits = hn::BitCast(d, hn::Add(v, every(0x1.8p23F)));
  return hn::Sub(hn::And(bits, hn::Set(d, 0x007fffff)), hn::Set(d, 0x00400000));
}

// the nearest whole numbers within low .. high, as floats
HWY_INLINE VF code_of(VF v, int low, int high) {
  const I8x d;
  return hn::ConvertTo(F8(), hn::Max(hn::Set(d, low), hn::Min(hn::Set(d, high), nearest_whole(v))));
}

// kSide groups together: element i of all of them is one vector. Lanes without a group hold
// zeros.
struct Side {
  HWY_ALIGN float x[kMostElements * kSide];
  HWY_ALIGN float w[kMostElements * kSide];
  int n, used;
  HWY_INLINE VF x_at(int i) const { return hn::Load(F8(), x + i * kSide); }
  HWY_INLINE VF w_at(int i) const { return hn::Load(F8(), w + i * kSide); }
};

HWY_INLINE void fill_side(const Groups& groups, int first, Side& side) {
  side.n = groups.n;
  side.used = std::min(kSide, groups.count - first);
  for (int lane = 0; lane < kSide; ++lane) {
    const bool holds = lane < side.used;
    const int64_t at = static_cast<int64_t>(first + lane) * groups.n;
    for (int i = 0; i < groups.n; ++i) {
      side.x[i * kSide + lane] = holds ? groups.x[at + i] : 0;
      side.w[i * kSide + lane] = holds && groups.weights != nullptr ? groups.weights[at + i] : 0;
    }
  }
}

HWY_INLINE void put_scales(VF v, int used, float* to) {
  HWY_ALIGN float lanes[kSide];
  hn::Store(v, F8(), lanes);
  std::copy_n(lanes, used, to);
}

// element i's codes, whole numbers, of every group
HWY_INLINE void put_codes(VF v, int i, const Side& side, uint8_t* codes) {
  HWY_ALIGN int32_t lanes[kSide];
  hn::Store(hn::ConvertTo(I8x(), v), I8x(), lanes);
  for (int lane = 0; lane < side.used; ++lane)
    codes[lane * side.n + i] = static_cast<uint8_t>(lanes[lane]);
}

template <bool absolute>
HWY_INLINE VF error_of(VF scale, VF q, VF low, VF x) {
  const VF difference = hn::Sub(hn::Add(hn::Mul(scale, q), low), x);
  return absolute ? hn::Abs(difference) : hn::Mul(difference, difference);
}

template <bool absolute>
HWY_INLINE void fit_ranges(
    const Side& side, const RangeGrid& grid, uint8_t* codes, float* scales, float* minima) {
  const VF zero = hn::Zero(F8());
  VF low = side.x_at(0), high = low, sum_w = side.w_at(0), sum_x = hn::Mul(sum_w, low);
  for (int i = 1; i < side.n; ++i) {
    const VF x = side.x_at(i), w = side.w_at(i);
    low = hn::IfThenElse(hn::Lt(x, low), x, low);
    high = hn::IfThenElse(hn::Gt(x, high), x, high);
    sum_w = hn::Add(sum_w, w);
    sum_x = hn::Add(sum_x, hn::Mul(w, x));
  }
  low = hn::IfThenElse(hn::Gt(low, zero), zero, low);
  const VF first = low;
  const MF flat = hn::Eq(high, low);

  // the plain range first
  VF best_inverse = hn::Div(every(static_cast<float>(grid.most)), hn::Sub(high, low));
  VF best_origin = low;
  VF scale = hn::Div(every(1), best_inverse), best_error = zero;
  for (int i = 0; i < side.n; ++i) {
    const VF x = side.x_at(i);
    const VF q = code_of(hn::Mul(best_inverse, hn::Sub(x, low)), 0, grid.most);
    best_error = hn::Add(best_error, hn::Mul(side.w_at(i), error_of<absolute>(scale, q, low, x)));
  }

  HWY_ALIGN float q_of[kMostElements * kSide];
  for (int step = 0; step <= grid.steps; ++step) {
    const float parts = grid.step * static_cast<float>(step) + grid.first;
    // from the best minimum so far on
    const VF origin = low;
    const VF inverse = hn::Div(every(parts + static_cast<float>(grid.most)), hn::Sub(high, origin));
    VF sum_q = zero, sum_q2 = zero, sum_xq = zero;
    for (int i = 0; i < side.n; ++i) {
      const VF x = side.x_at(i);
      const VF q = code_of(hn::Mul(inverse, hn::Sub(x, origin)), 0, grid.most);
      hn::Store(q, F8(), q_of + i * kSide);
      const VF wq = hn::Mul(side.w_at(i), q);
      sum_q = hn::Add(sum_q, wq);
      sum_q2 = hn::Add(sum_q2, hn::Mul(wq, q));
      sum_xq = hn::Add(sum_xq, hn::Mul(wq, x));
    }
    // least squares
    const VF d = hn::Sub(hn::Mul(sum_w, sum_q2), hn::Mul(sum_q, sum_q));
    VF new_scale = hn::Div(hn::Sub(hn::Mul(sum_w, sum_xq), hn::Mul(sum_x, sum_q)), d);
    VF new_low = hn::Div(hn::Sub(hn::Mul(sum_q2, sum_x), hn::Mul(sum_q, sum_xq)), d);
    const MF above = hn::Gt(new_low, zero);
    new_low = hn::IfThenElse(above, zero, new_low);
    new_scale = hn::IfThenElse(above, hn::Div(sum_xq, sum_q2), new_scale);
    VF error = zero;
    for (int i = 0; i < side.n; ++i) {
      const VF q = hn::Load(F8(), q_of + i * kSide);
      error = hn::Add(
          error, hn::Mul(side.w_at(i), error_of<absolute>(new_scale, q, new_low, side.x_at(i))));
    }
    const MF better = hn::And(hn::Gt(d, zero), hn::Lt(error, best_error));
    best_error = hn::IfThenElse(better, error, best_error);
    best_inverse = hn::IfThenElse(better, inverse, best_inverse);
    best_origin = hn::IfThenElse(better, origin, best_origin);
    scale = hn::IfThenElse(better, new_scale, scale);
    low = hn::IfThenElse(better, new_low, low);
  }

  low = hn::IfThenElse(flat, first, low);
  put_scales(hn::IfThenElse(flat, zero, scale), side.used, scales);
  put_scales(hn::Neg(low), side.used, minima);
  for (int i = 0; i < side.n; ++i) {
    const VF q = code_of(hn::Mul(best_inverse, hn::Sub(side.x_at(i), best_origin)), 0, grid.most);
    put_codes(hn::IfThenElse(flat, zero, q), i, side, codes);
  }
}

// the first number of the largest magnitude
HWY_INLINE VF furthest(const Side& side, VF& magnitude) {
  VF most = hn::Zero(F8()), size = most;
  for (int i = 0; i < side.n; ++i) {
    const VF x = side.x_at(i), a = hn::Abs(x);
    const MF larger = hn::Gt(a, size);
    size = hn::IfThenElse(larger, a, size);
    most = hn::IfThenElse(larger, x, most);
  }
  magnitude = size;
  return most;
}

HWY_INLINE void fit_scales(const Side& side, int most, uint8_t* codes, float* scales) {
  const VF zero = hn::Zero(F8());
  VF size;
  const VF end = furthest(side, size);
  const MF nothing = hn::Lt(size, every(kNothing));
  const auto sums = [&](VF inverse, VF& sum_xq, VF& sum_q2) HWY_ATTR {
    sum_xq = sum_q2 = zero;
    for (int i = 0; i < side.n; ++i) {
      const VF x = side.x_at(i), w = side.w_at(i);
      const VF q = code_of(hn::Mul(inverse, x), -most, most - 1);
      sum_xq = hn::Add(sum_xq, hn::Mul(hn::Mul(w, x), q));
      sum_q2 = hn::Add(sum_q2, hn::Mul(hn::Mul(w, q), q));
    }
  };
  VF best_inverse = hn::Div(every(static_cast<float>(-most)), end), sum_xq, sum_q2;
  sums(best_inverse, sum_xq, sum_q2);
  VF scale = hn::IfThenElse(hn::Eq(sum_q2, zero), zero, hn::Div(sum_xq, sum_q2));
  VF best = hn::Mul(scale, sum_xq);
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float parts = static_cast<float>(most) + 0.1F * static_cast<float>(step);
    const VF inverse = hn::Div(every(-parts), end);
    sums(inverse, sum_xq, sum_q2);
    const MF better =
        hn::And(hn::Gt(sum_q2, zero), hn::Gt(hn::Mul(sum_xq, sum_xq), hn::Mul(best, sum_q2)));
    const VF new_scale = hn::Div(sum_xq, sum_q2);
    best_inverse = hn::IfThenElse(better, inverse, best_inverse);
    best = hn::IfThenElse(better, hn::Mul(new_scale, sum_xq), best);
    scale = hn::IfThenElse(better, new_scale, scale);
  }
  put_scales(hn::IfThenElse(nothing, zero, scale), side.used, scales);
  for (int i = 0; i < side.n; ++i) {
    const VF q = code_of(hn::Mul(best_inverse, side.x_at(i)), -most, most - 1);
    put_codes(hn::IfThenElse(nothing, zero, hn::Add(q, every(static_cast<float>(most)))), i, side,
              codes);
  }
}

HWY_INLINE void descend(const Side& side, int most, uint8_t* codes, float* scales) {
  const VF zero = hn::Zero(F8());
  VF size;
  const VF end = furthest(side, size);
  const MF nothing = hn::Lt(size, every(kNothing));
  const VF inverse = hn::Div(every(static_cast<float>(-most)), end);
  HWY_ALIGN float q_of[kMostElements * kSide];
  VF sum_xq = zero, sum_q2 = zero;
  for (int i = 0; i < side.n; ++i) {
    const VF x = side.x_at(i), w = hn::Mul(x, x);
    const VF q = code_of(hn::Mul(inverse, x), -most, most - 1);
    hn::Store(q, F8(), q_of + i * kSide);
    sum_xq = hn::Add(sum_xq, hn::Mul(hn::Mul(w, x), q));
    sum_q2 = hn::Add(sum_q2, hn::Mul(hn::Mul(w, q), q));
  }
  for (int round = 0; round < 5; ++round) {
    bool changed = false;
    for (int i = 0; i < side.n; ++i) {
      const VF x = side.x_at(i), w = hn::Mul(x, x), q = hn::Load(F8(), q_of + i * kSide);
      const VF others_xq = hn::Sub(sum_xq, hn::Mul(hn::Mul(w, x), q));
      const VF others_q2 = hn::Sub(sum_q2, hn::Mul(hn::Mul(w, q), q));
      const VF next = code_of(hn::Div(hn::Mul(x, others_q2), others_xq), -most, most - 1);
      const VF xq = hn::Add(others_xq, hn::Mul(hn::Mul(w, x), next));
      const VF q2 = hn::Add(others_q2, hn::Mul(hn::Mul(w, next), next));
      const MF gains =
          hn::Gt(hn::Mul(hn::Mul(xq, xq), sum_q2), hn::Mul(hn::Mul(sum_xq, sum_xq), q2));
      const MF moves = hn::And(hn::And(hn::Gt(others_xq, zero), hn::Ne(next, q)),
                               hn::And(hn::Gt(q2, zero), gains));
      if (hn::AllFalse(F8(), moves)) continue;
      changed = true;
      hn::Store(hn::IfThenElse(moves, next, q), F8(), q_of + i * kSide);
      sum_xq = hn::IfThenElse(moves, xq, sum_xq);
      sum_q2 = hn::IfThenElse(moves, q2, sum_q2);
    }
    if (!changed) break;
  }
  const VF scale = hn::IfThenElse(hn::Gt(sum_q2, zero), hn::Div(sum_xq, sum_q2), zero);
  put_scales(hn::IfThenElse(nothing, zero, scale), side.used, scales);
  for (int i = 0; i < side.n; ++i) {
    const VF q = hn::Add(hn::Load(F8(), q_of + i * kSide), every(static_cast<float>(most)));
    put_codes(hn::IfThenElse(nothing, zero, q), i, side, codes);
  }
}

// the level nearest to x, of two as near the upper one; `index` is which
HWY_INLINE VF level_of(VF x, VF& index) {
  VF level = every(kLevels[0]), count = hn::Zero(F8());
  for (int j = 1; j < 16; ++j) {
    const float middle = 0.5F * static_cast<float>(kLevels[j - 1] + kLevels[j]);
    const MF beyond = hn::Ge(x, every(middle));
    level = hn::IfThenElse(beyond, every(kLevels[j]), level);
    count = hn::IfThenElse(beyond, every(static_cast<float>(j)), count);
  }
  index = count;
  return level;
}

HWY_INLINE void fit_levels(const Side& side, float* scales) {
  const VF zero = hn::Zero(F8());
  VF size, unused;
  const VF end = furthest(side, size);
  const auto sums = [&](VF inverse, VF& sum_xq, VF& sum_q2) HWY_ATTR {
    sum_xq = sum_q2 = zero;
    for (int i = 0; i < side.n; ++i) {
      const VF x = side.x_at(i);
      const VF q = level_of(hn::Mul(inverse, x), unused), wq = hn::Mul(side.w_at(i), q);
      sum_xq = hn::Add(sum_xq, hn::Mul(wq, x));
      sum_q2 = hn::Add(sum_q2, hn::Mul(wq, q));
    }
  };
  VF sum_xq, sum_q2;
  const VF first = hn::Div(hn::Neg(end), every(kLevels[0]));
  sums(hn::Div(every(1), first), sum_xq, sum_q2);
  VF scale = hn::IfThenElse(hn::Gt(sum_q2, zero), hn::Div(sum_xq, sum_q2), zero);
  VF best = hn::Mul(scale, sum_xq);
  for (int step = -7; step <= 7; ++step) {
    sums(hn::Div(every(static_cast<float>(step + kLevels[0])), end), sum_xq, sum_q2);
    const MF better =
        hn::And(hn::Gt(sum_q2, zero), hn::Gt(hn::Mul(sum_xq, sum_xq), hn::Mul(best, sum_q2)));
    const VF new_scale = hn::Div(sum_xq, sum_q2);
    best = hn::IfThenElse(better, hn::Mul(new_scale, sum_xq), best);
    scale = hn::IfThenElse(better, new_scale, scale);
  }
  put_scales(hn::IfThenElse(hn::Lt(size, every(kNothing)), zero, scale), side.used, scales);
}

void ranges_of_groups(
    const Groups& groups, const RangeGrid& grid, uint8_t* codes, float* scales, float* minima) {
  Side side;
  for (int first = 0; first < groups.count; first += kSide) {
    fill_side(groups, first, side);
    uint8_t* to = codes + first * groups.n;
    grid.absolute ? fit_ranges<true>(side, grid, to, scales + first, minima + first)
                  : fit_ranges<false>(side, grid, to, scales + first, minima + first);
  }
}

void scales_of_groups(const Groups& groups, int most, uint8_t* codes, float* scales) {
  Side side;
  for (int first = 0; first < groups.count; first += kSide) {
    fill_side(groups, first, side);
    fit_scales(side, most, codes + first * groups.n, scales + first);
  }
}

void descend_groups(const Groups& groups, int most, uint8_t* codes, float* scales) {
  Side side;
  for (int first = 0; first < groups.count; first += kSide) {
    fill_side(groups, first, side);
    descend(side, most, codes + first * groups.n, scales + first);
  }
}

void levels_of_groups(const Groups& groups, float* scales) {
  Side side;
  for (int first = 0; first < groups.count; first += kSide) {
    fill_side(groups, first, side);
    fit_levels(side, scales + first);
  }
}

HWY_INLINE void put_bytes(VX v, uint8_t* to) {
  const hn::Rebind<uint8_t, I8x> bytes;
  hn::StoreU(hn::DemoteTo(bytes, v), bytes, to);
}

void codes_of_numbers(const float* x, int n, float d, float m, int low, int high, uint8_t* codes) {
  const I8x di;
  for (int i = 0; i < n; i += kSide) {
    const VF v = hn::Div(hn::Add(hn::LoadU(F8(), x + i), every(m)), every(d));
    const VX q = hn::Max(hn::Set(di, low), hn::Min(hn::Set(di, high), nearest_whole(v)));
    put_bytes(hn::Sub(q, hn::Set(di, low)), codes + i);
  }
}

void levels_of_numbers(const float* x, int n, float inverse, uint8_t* codes) {
  for (int i = 0; i < n; i += kSide) {
    VF index;
    level_of(hn::Mul(every(inverse), hn::LoadU(F8(), x + i)), index);
    put_bytes(hn::ConvertTo(I8x(), index), codes + i);
  }
}

void weights_of_numbers(const float* x, const float* importance, float base, int n, float* w) {
  for (int i = 0; i < n; i += kSide) {
    const VF v = hn::LoadU(F8(), x + i);
    const VF root = hn::Sqrt(hn::Add(every(base), hn::Mul(v, v)));
    hn::StoreU(hn::Mul(hn::LoadU(F8(), importance + i), root), F8(), w + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(ranges_of_groups);
HWY_EXPORT(scales_of_groups);
HWY_EXPORT(descend_groups);
HWY_EXPORT(levels_of_groups);
HWY_EXPORT(codes_of_numbers);
HWY_EXPORT(levels_of_numbers);
HWY_EXPORT(weights_of_numbers);

void search_ranges(
    const Groups& groups, const RangeGrid& grid, uint8_t* codes, float* scales, float* minima) {
  HWY_DYNAMIC_DISPATCH(ranges_of_groups)(groups, grid, codes, scales, minima);
}

void search_scales(const Groups& groups, int most, uint8_t* codes, float* scales) {
  HWY_DYNAMIC_DISPATCH(scales_of_groups)(groups, most, codes, scales);
}

void descend_scales(const Groups& groups, int most, uint8_t* codes, float* scales) {
  HWY_DYNAMIC_DISPATCH(descend_groups)(groups, most, codes, scales);
}

void search_levels(const Groups& groups, float* scales) {
  HWY_DYNAMIC_DISPATCH(levels_of_groups)(groups, scales);
}

void round_to_codes(const float* x, int n, float d, float m, int low, int high, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(codes_of_numbers)(x, n, d, m, low, high, codes);
}

void round_to_levels(const float* x, int n, float inverse, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(levels_of_numbers)(x, n, inverse, codes);
}

void weigh(const float* x, const float* importance, float base, int n, float* w) {
  HWY_DYNAMIC_DISPATCH(weights_of_numbers)(x, importance, base, n, w);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
