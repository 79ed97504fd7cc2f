#include "tessera/kernels/linear_recurrence_backward.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear_recurrence_backward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

enum class Rule { plain, bonus, delta, rank_one };

constexpr int64_t kStripRows = 16;  // value channels whose states of a block stay in cache together

// One head; `decays`: their gradients are asked for. The state lies transposed, [V, K] with K
// padded to whole vectors: gradients of what has K channels are then sums of rows, without a sum
// across lanes.
template <Rule rule, bool decays>
class HeadBackward {
 public:
  HeadBackward(const LinearRecurrence& r, const LinearRecurrenceGradients& g)
      : r_(r),
        g_(g),
        width_((r.K + kLanes - 1) / kLanes * kLanes),
        rows_((r.V + kStripRows - 1) / kStripRows * kStripRows),
        states_(size((g.interval + 1) * kStripRows * width_)),
        dstate_(size(rows_ * width_)),
        seen_(size(g.interval * kStripRows)),
        bonus_(size(width_)),
        dbonus_(size(width_)) {
    for (auto* block : {&q_, &k_, &a_, &b_, &decay_, &along_, &dq_, &dk_, &da_, &db_, &dd_})
      block->resize(size(g.interval * width_));
    dbeta_.resize(size(g.interval));
    reads_.resize(size(g.interval));
  }

  void run(int64_t h) {
    h_ = h;
    for (int64_t c = 0; c < r_.K; ++c)
      for (int64_t v = 0; v < r_.V; ++v)
        dstate_[size(v * width_ + c)] = g_.dstate[(h * r_.K + c) * r_.V + v];
    std::fill(dbonus_.begin(), dbonus_.end(), 0.0f);
    if (rule == Rule::bonus) std::copy_n(r_.bonus + h * r_.K, r_.K, bonus_.begin());
    for (int64_t block = (r_.T + g_.interval - 1) / g_.interval - 1; block >= 0; --block) {
      begin_ = block * g_.interval;
      count_ = std::min(g_.interval, r_.T - begin_);
      load_block();
      for (int64_t row = 0; row < r_.V; row += kStripRows) {
        recompute(block, row);
        for (int64_t t = count_ - 1; t >= 0; --t) step_back(t, row);
      }
      store_block();
    }
    for (int64_t c = 0; c < r_.K; ++c)
      for (int64_t v = 0; v < r_.V; ++v)
        g_.dstate[(h * r_.K + c) * r_.V + v] = dstate_[size(v * width_ + c)];
    if (rule == Rule::bonus) std::copy_n(dbonus_.begin(), r_.K, g_.dbonus + h * r_.K);
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  int64_t head(int64_t t) const { return (begin_ + t) * r_.H + h_; }

  // the block's inputs with padded channels, decays as factors; gradients of the block start at 0
  void load_block() {
    for (auto* block : {&dq_, &dk_, &da_, &db_, &dd_})
      std::fill(block->begin(), block->end(), 0.0f);
    std::fill(dbeta_.begin(), dbeta_.end(), 0.0f);
    for (int64_t t = 0; t < count_; ++t) {
      const int64_t from = head(t) * r_.K;
      const auto copy = [&](const float* source, std::vector<float>& to) {
        std::copy_n(source + from, r_.K, to.begin() + t * width_);
      };
      copy(r_.q, q_);
      copy(r_.k, k_);
      if (rule == Rule::rank_one) copy(r_.a, a_), copy(r_.b, b_);
      for (int64_t c = 0; c < r_.K; c += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, r_.K - c);
        const V32 log = r_.decay == DecayPer::nothing ? zero()
                        : r_.decay == DecayPer::head  ? all(r_.log_decay[h_])
                        : r_.decay == DecayPer::token ? all(r_.log_decay[head(t)])
                                                      : load_upto(r_.log_decay + from + c, n);
        const V32 d = exp_negative(log);
        const int64_t at = t * width_ + c;
        store(d, &decay_[size(at)]);
        if (rule == Rule::delta) store(hn::Mul(d, load(&k_[size(at)])), &along_[size(at)]);
        if (rule == Rule::rank_one) store(load(&a_[size(at)]), &along_[size(at)]);
      }
      if (rule == Rule::bonus) {
        float read = 0;
        for (int64_t c = 0; c < r_.K; ++c)
          read += q_[size(t * width_ + c)] * bonus_[size(c)] * k_[size(t * width_ + c)];
        reads_[size(t)] = read;
      }
    }
  }

  // states_[t] before token t of the block, seen_[t] what the rule reads of it; the queries'
  // gradient on the way, while the states are in registers
  void recompute(int64_t block, int64_t row) {
    load_states(g_.checkpoints + (block * r_.H + h_) * r_.K * r_.V + row,
                std::min(kStripRows, r_.V - row));
    for (int64_t t = 0; t < count_; ++t)
      for (int64_t i = 0; i < kStripRows; i += 4) recompute_rows(t, row, i);
  }

  // states_[0] from the first n columns of [K, V]
  void load_states(const float* saved, int64_t n) {
    float* to = state(0, 0);
    std::fill_n(to, kStripRows * width_, 0.0f);
    const int64_t columns = n / 4 * 4, channels = r_.K / 4 * 4;
    for (int64_t c = 0; c < channels; c += 4)
      for (int64_t v = 0; v < columns; v += 4)
        transpose_4x4(saved + c * r_.V + v, r_.V, to + v * width_ + c, width_);
    for (int64_t c = 0; c < r_.K; ++c)
      for (int64_t v = c < channels ? columns : 0; v < n; ++v)
        to[v * width_ + c] = saved[c * r_.V + v];
  }

  HWY_INLINE void recompute_rows(int64_t t, int64_t row, int64_t i) {
    const int64_t n = r_.V - row - i, base = t * width_;
    const float* v = r_.v + head(t) * r_.V + row + i;
    const float* dy = g_.dy + head(t) * r_.V + row + i;
    const float* old = state(t, i);
    float* fresh = state(t + 1, i);
    float* seen = &seen_[size(t * kStripRows + i)];
    HWY_ALIGN float read[4] = {};
    if (rule == Rule::delta || rule == Rule::rank_one) dots(&along_[size(base)], old, read);
    V32 in[4], dout[4], along[4];
    for (int64_t j = 0; j < 4; ++j) {
      const float value = j < n ? v[j] : 0.0f;
      seen[j] = rule == Rule::delta ? value - read[j] : read[j];
      in[j] = all(rule == Rule::delta ? r_.beta[head(t)] * seen[j] : value);
      dout[j] = all(j < n ? dy[j] : 0.0f);
      along[j] = all(read[j]);
    }
    for (int64_t c = 0; c < width_; c += kLanes) {
      const auto at = size(base + c);
      const V32 k = load(&k_[at]), d = load(&decay_[at]);
      V32 dq = load(&dq_[at]);
#pragma GCC unroll 4
      for (int64_t j = 0; j < 4; ++j) {
        const V32 before = load(old + j * width_ + c);
        V32 after = hn::MulAdd(in[j], k, hn::Mul(d, before));
        if constexpr (rule == Rule::rank_one) after = hn::MulAdd(along[j], load(&b_[at]), after);
        store(after, fresh + j * width_ + c);
        dq = hn::MulAdd(dout[j], rule == Rule::bonus ? before : after, dq);
      }
      store(dq, &dq_[at]);
    }
  }

  // out[j] = x . rows[j], four rows of width_ floats
  HWY_INLINE void dots(const float* x, const float* rows, float* out) const {
    V32 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
    for (int64_t c = 0; c < width_; c += kLanes) {
      const V32 xs = load(x + c);
      s0 = hn::MulAdd(xs, load(rows + c), s0);
      s1 = hn::MulAdd(xs, load(rows + width_ + c), s1);
      s2 = hn::MulAdd(xs, load(rows + 2 * width_ + c), s2);
      s3 = hn::MulAdd(xs, load(rows + 3 * width_ + c), s3);
    }
    hn::StoreU(sums_of_4(s0, s1, s2, s3), F32x4(), out);
  }

  // G is the gradient of the state after token t when it comes in, of the one before when it leaves
  void step_back(int64_t t, int64_t row) {
    float present = 0;  // bonus: sum of v dy over the strip
    for (int64_t i = 0; i < kStripRows; i += 4) present += step_back_rows(t, row, i);
    if (rule != Rule::bonus) return;
    const int64_t base = t * width_;
    for (int64_t c = 0; c < r_.K; ++c) {
      const auto at = size(base + c);
      const float u = bonus_[size(c)];
      dq_[at] += present * u * k_[at];
      dk_[at] += present * u * q_[at];
      dbonus_[size(c)] += present * q_[at] * k_[at];
    }
  }

  // four rows of it; returns the sum of their v dy
  HWY_INLINE float step_back_rows(int64_t t, int64_t row, int64_t i) {
    const int64_t n = r_.V - row - i, base = t * width_;
    const float* v = r_.v + head(t) * r_.V + row + i;
    const float* dy = g_.dy + head(t) * r_.V + row + i;
    float* gradient = &dstate_[size((row + i) * width_)];
    float value[4], dout[4];
    float present = 0;
    for (int64_t j = 0; j < 4; ++j) {
      value[j] = j < n ? v[j] : 0.0f;
      dout[j] = j < n ? dy[j] : 0.0f;
      present += value[j] * dout[j];
    }
    HWY_ALIGN float written[4];         // G . k
    HWY_ALIGN float corrected[4] = {};  // rank one: G . b
    read_gradient(base, dout, gradient, written, corrected);
    const float rate = rule == Rule::delta ? r_.beta[head(t)] : 1.0f;
    const float* seen = &seen_[size(t * kStripRows + i)];
    float* dv = g_.dv + head(t) * r_.V + row + i;
    for (int64_t j = 0; j < 4; ++j) {
      if (rule == Rule::delta) dbeta_[size(t)] += written[j] * seen[j];
      if (j < n)
        dv[j] = rule == Rule::bonus ? written[j] + reads_[size(t)] * dout[j] : rate * written[j];
    }
    const float* old = state(t, i);
    for (int64_t c = 0; c < width_; c += kLanes) {
      const auto at = size(base + c);
      const V32 k = load(&k_[at]), d = load(&decay_[at]);
      V32 dk = load(&dk_[at]), dd = load(&dd_[at]), da = load(&da_[at]), db = load(&db_[at]);
#pragma GCC unroll 4
      for (int64_t j = 0; j < 4; ++j) {
        float* g = gradient + j * width_ + c;
        const float* before = old + j * width_ + c;
        const V32 now = load(g);
        if constexpr (rule == Rule::delta) {
          // e = v - (d o k) . S;  S' = d o S + beta k e
          const V32 de = all(rate * written[j]);
          dk = hn::MulAdd(all(rate * seen[j]), now, dk);
          dk = hn::NegMulAdd(de, hn::Mul(d, load(before)), dk);
          const V32 through = hn::NegMulAdd(de, k, now);
          if constexpr (decays) dd = hn::MulAdd(through, load(before), dd);
          store(hn::Mul(d, through), g);
        } else {
          dk = hn::MulAdd(all(value[j]), now, dk);
          if constexpr (decays) dd = hn::MulAdd(now, load(before), dd);
          V32 next = hn::Mul(d, now);
          if constexpr (rule == Rule::bonus) next = hn::MulAdd(all(dout[j]), load(&q_[at]), next);
          if constexpr (rule == Rule::rank_one) {
            db = hn::MulAdd(all(seen[j]), now, db);
            da = hn::MulAdd(all(corrected[j]), load(before), da);
            next = hn::MulAdd(all(corrected[j]), load(&a_[at]), next);
          }
          store(next, g);
        }
      }
      store(dk, &dk_[at]);
      if (decays) store(dd, &dd_[at]);
      if (rule == Rule::rank_one) store(da, &da_[at]), store(db, &db_[at]);
    }
    return present;
  }

  // G += dy q^T, unless the bonus reads the state before it was written; then G . k and G . b
  HWY_INLINE void read_gradient(
      int64_t base, const float* dout, float* gradient, float* written, float* corrected) {
    V32 with_k[4], with_b[4];
    for (int64_t j = 0; j < 4; ++j) with_k[j] = with_b[j] = zero();
    for (int64_t c = 0; c < width_; c += kLanes) {
      const auto at = size(base + c);
      const V32 q = load(&q_[at]), k = load(&k_[at]);
#pragma GCC unroll 4
      for (int64_t j = 0; j < 4; ++j) {
        V32 g = load(gradient + j * width_ + c);
        if constexpr (rule != Rule::bonus) {
          g = hn::MulAdd(all(dout[j]), q, g);
          store(g, gradient + j * width_ + c);
        }
        with_k[j] = hn::MulAdd(g, k, with_k[j]);
        if constexpr (rule == Rule::rank_one) with_b[j] = hn::MulAdd(g, load(&b_[at]), with_b[j]);
      }
    }
    hn::StoreU(sums_of_4(with_k[0], with_k[1], with_k[2], with_k[3]), F32x4(), written);
    if (rule == Rule::rank_one)
      hn::StoreU(sums_of_4(with_b[0], with_b[1], with_b[2], with_b[3]), F32x4(), corrected);
  }

  void store_block() {
    for (int64_t t = 0; t < count_; ++t) {
      const auto copy = [&](const std::vector<float>& from, float* to) {
        std::copy_n(from.begin() + t * width_, r_.K, to + head(t) * r_.K);
      };
      copy(dq_, g_.dq);
      copy(dk_, g_.dk);
      if (rule == Rule::rank_one) copy(da_, g_.da), copy(db_, g_.db);
      if (rule == Rule::delta) g_.dbeta[head(t)] = dbeta_[size(t)];
      if (g_.dlog_decay == nullptr) continue;
      // d ln d = d dd
      float sum = 0;
      for (int64_t c = 0; c < r_.K; ++c) {
        const auto at = size(t * width_ + c);
        const float change = dd_[at] * decay_[at];
        sum += change;
        if (r_.decay == DecayPer::channel) g_.dlog_decay[head(t) * r_.K + c] = change;
      }
      if (r_.decay == DecayPer::token) g_.dlog_decay[head(t)] = sum;
    }
  }

  float* state(int64_t t, int64_t row) {
    return &states_[size((t * kStripRows + row) * width_)];
  }

  const LinearRecurrence& r_;
  const LinearRecurrenceGradients& g_;
  int64_t width_, rows_, h_ = 0, begin_ = 0, count_ = 0;
  std::vector<float> states_, dstate_, seen_, bonus_, dbonus_, dbeta_;
  std::vector<float> reads_;  // bonus: q . (u o k) of each token
  std::vector<float> q_, k_, a_, b_, decay_, along_, dq_, dk_, da_, db_, dd_;
};

template <Rule rule, bool decays>
void backward_decaying(const LinearRecurrence& r,
                       const LinearRecurrenceGradients& g,
                       int64_t begin,
                       int64_t end) {
  HeadBackward<rule, decays> backward(r, g);
  for (int64_t h = begin; h < end; ++h) backward.run(h);
}

template <Rule rule>
void backward_with(const LinearRecurrence& r,
                   const LinearRecurrenceGradients& g,
                   int64_t begin,
                   int64_t end) {
  if (g.dlog_decay != nullptr) return backward_decaying<rule, true>(r, g, begin, end);
  backward_decaying<rule, false>(r, g, begin, end);
}

void backward_heads(const LinearRecurrence& r,
                    const LinearRecurrenceGradients& g,
                    int64_t begin,
                    int64_t end) {
  if (r.beta != nullptr) return backward_with<Rule::delta>(r, g, begin, end);
  if (r.a != nullptr) return backward_with<Rule::rank_one>(r, g, begin, end);
  if (r.bonus != nullptr) return backward_with<Rule::bonus>(r, g, begin, end);
  backward_with<Rule::plain>(r, g, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(backward_heads);

void linear_recurrence_backward(const LinearRecurrence& r, const LinearRecurrenceGradients& g) {
  require(g.interval > 0, "linear_recurrence_backward", "interval = {}", g.interval);
  cap_targets();
  parallel_for(r.H, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(backward_heads)(r, g, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
