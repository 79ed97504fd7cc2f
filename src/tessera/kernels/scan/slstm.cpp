#include "tessera/kernels/scan/slstm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/slstm.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// log sigmoid(x) = min(x, 0) - ln(1 + e^-|x|)
HWY_INLINE V32 log_sigmoid_of(V32 x) {
  const V32 e = exp_negative(hn::Neg(hn::Abs(x)));
  return hn::Sub(hn::Min(x, zero()), hn::Log1p(F32(), e));
}

HWY_INLINE V32 tanh_of(V32 x) {
  return activate<Activation::tanh>(x);
}

struct Decays {
  V32 forget, input, m;
};

HWY_INLINE Decays decays_of(V32 i, V32 f, V32 m_before, bool first) {
  if (first) return {zero(), all(1.0f), i};
  const V32 kept = hn::Add(log_sigmoid_of(f), m_before);
  const V32 m = hn::Max(kept, i);
  return {exp_negative(hn::Sub(kept, m)), exp_negative(hn::Sub(i, m)), m};
}

// sum_i in[i] rows[i][o ..]: the order of i is fixed
HWY_INLINE V32
product(const float* rows, const float* in, int64_t p, int64_t o, int64_t count, V32 sum) {
  for (int64_t i = 0; i < p; ++i)
    sum = hn::MulAdd(all(in[i]), load_upto(rows + i * p + o, count), sum);
  return sum;
}

// one head's tokens; `columns` [4, P, P] is R with the inputs first, h the output before
void run_head(const Slstm& s, int64_t head, float* columns, float* h) {
  const int64_t d = s.H * s.P, p = s.P, base = head * p;
  for (int64_t g = 0; g < 4; ++g)
    for (int64_t o = 0; o < p; ++o)
      for (int64_t i = 0; i < p; ++i)
        columns[(g * p + i) * p + o] = s.r[(g * d + base + o) * p + i];
  float *c_row = s.state + d + base, *n_row = c_row + d, *m_row = n_row + d;
  if (s.fresh) {
    std::fill(h, h + p, 0.0f);
    for (float* row : {c_row, n_row, m_row}) std::fill(row, row + p, 0.0f);
  } else {
    std::copy(s.state + base, s.state + base + p, h);
  }
  for (int64_t t = 0; t < s.T; ++t) {
    float* y = s.y + t * d + base;
    for (int64_t o = 0; o < p; o += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, p - o);
      V32 gate[4];
      for (int64_t g = 0; g < 4; ++g) {
        const int64_t at = (t * 4 + g) * d + base + o;
        gate[g] = product(columns + g * p * p, h, p, o, count, load_upto(s.pre + at, count));
        if (s.gates) store_upto(gate[g], s.gates + at, count);
      }
      const Decays e = decays_of(gate[0], gate[1], load_upto(m_row + o, count), s.fresh && t == 0);
      const V32 c =
          hn::MulAdd(e.forget, load_upto(c_row + o, count), hn::Mul(e.input, tanh_of(gate[2])));
      const V32 n = hn::MulAdd(e.forget, load_upto(n_row + o, count), e.input);
      store_upto(c, c_row + o, count);
      store_upto(n, n_row + o, count);
      store_upto(e.m, m_row + o, count);
      if (s.cells) {
        float* cells = s.cells + t * 3 * d + base + o;
        store_upto(c, cells, count);
        store_upto(n, cells + d, count);
        store_upto(e.m, cells + 2 * d, count);
      }
      store_upto(hn::Mul(sigmoid_of({gate[3], zero()}), hn::Div(c, n)), y + o, count);
    }
    std::copy(y, y + p, h);
  }
  std::copy(h, h + p, s.state + base);
}

// c and n carry the same factor e^-m, so that h does not depend on m: it counts as a constant
void backward_head(const SlstmGradient& g, int64_t head, float* work) {
  const Slstm& s = g.cell;
  const int64_t d = s.H * s.P, p = s.P, base = head * p;
  float *dh = work, *dc_carry = dh + p, *dn_carry = dc_carry + p;
  for (int64_t row = 0; row < 3; ++row)
    if (g.dstate != nullptr)
      std::copy_n(g.dstate + row * d + base, p, work + row * p);
    else
      std::fill_n(work + row * p, p, 0.0f);
  const V32 one = all(1.0f);
  for (int64_t t = s.T - 1; t >= 0; --t) {
    const float* cells = s.cells + t * 3 * d + base;
    for (int64_t o = 0; o < p; o += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, p - o);
      const auto gate = [&](int64_t k) HWY_ATTR {
        return load_upto(s.gates + (t * 4 + k) * d + base + o, count);
      };
      const auto before = [&](int64_t k) HWY_ATTR {
        return t > 0     ? load_upto(cells - 3 * d + k * d + o, count)
               : s.fresh ? zero()
                         : load_upto(g.start + (k + 1) * d + base + o, count);
      };
      const Decays e = decays_of(gate(0), gate(1), before(2), s.fresh && t == 0);
      const V32 c = load_upto(cells + o, count);
      // lanes beyond the head divide zero by one
      const V32 n = hn::IfThenElse(hn::Eq(load_upto(cells + d + o, count), zero()), one,
                                   load_upto(cells + d + o, count));
      const V32 ratio = hn::Div(c, n);
      const V32 open = sigmoid_of({gate(3), zero()});
      const V32 grad = hn::Add(load_upto(g.dy + t * d + base + o, count), load_upto(dh + o, count));
      const V32 along = hn::Div(hn::Mul(grad, open), n);
      const V32 dc = hn::Add(along, load_upto(dc_carry + o, count));
      const V32 dn = hn::NegMulAdd(along, ratio, load_upto(dn_carry + o, count));
      const V32 z = tanh_of(gate(2));
      const V32 df = hn::MulAdd(dc, before(0), hn::Mul(dn, before(1)));
      const V32 closing = sigmoid_of({hn::Neg(gate(1)), zero()});  // slope of log sigmoid(f)
      const V32 out[4] = {hn::Mul(e.input, hn::MulAdd(dc, z, dn)),
                          hn::Mul(hn::Mul(df, e.forget), closing),
                          hn::Mul(hn::Mul(dc, e.input), hn::NegMulAdd(z, z, one)),
                          hn::Mul(hn::Mul(hn::Mul(grad, ratio), open), hn::Sub(one, open))};
      for (int64_t k = 0; k < 4; ++k)
        store_upto(out[k], g.dgates + (t * 4 + k) * d + base + o, count);
      store_upto(hn::Mul(dc, e.forget), dc_carry + o, count);
      store_upto(hn::Mul(dn, e.forget), dn_carry + o, count);
    }
    for (int64_t i = 0; i < p; i += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, p - i);
      V32 sum = zero();
      for (int64_t k = 0; k < 4; ++k)
        sum =
            product(s.r + (k * d + base) * p, g.dgates + (t * 4 + k) * d + base, p, i, count, sum);
      store_upto(sum, dh + i, count);
    }
  }
  if (g.dstate == nullptr) return;
  for (int64_t row = 0; row < 3; ++row) std::copy_n(work + row * p, p, g.dstate + row * d + base);
  std::fill_n(g.dstate + 3 * d + base, p, 0.0f);
}

void run_heads(const Slstm& s, int64_t begin, int64_t end) {
  float* work = scratch<10>(4 * s.P * s.P + s.P);
  for (int64_t h = begin; h < end; ++h) run_head(s, h, work, work + 4 * s.P * s.P);
}

void backward_heads(const SlstmGradient& g, int64_t begin, int64_t end) {
  float* work = scratch<10>(3 * g.cell.P);
  for (int64_t h = begin; h < end; ++h) backward_head(g, h, work);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(run_heads);
HWY_EXPORT(backward_heads);

void slstm(const Slstm& s, int64_t begin, int64_t end) {
  cap_targets();
  if (s.T > 0) HWY_DYNAMIC_DISPATCH(run_heads)(s, begin, end);
}

void slstm(const Slstm& s) {
  const int64_t grain = 1 + (int64_t{1} << 15) / (1 + s.T * s.P * s.P);
  parallel_for(s.H, grain, [&](int64_t begin, int64_t end) { slstm(s, begin, end); });
}

void slstm_backward(const SlstmGradient& g, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(backward_heads)(g, begin, end);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
