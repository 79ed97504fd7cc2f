#include "tessera/kernels/linear/linear_recurrence.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear/linear_recurrence.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

namespace tessera::kernels {
#ifndef TESSERA_KERNELS_LINEAR_RECURRENCE_STEPS_
#define TESSERA_KERNELS_LINEAR_RECURRENCE_STEPS_
// What the columns of a head share: computed once, before they are shared out.
struct RecurrenceSteps {
  const float* decay = nullptr;  // exp(log_decay), in the layout of log_decay; null without
  const float* bonus = nullptr;  // [T, H]: q_t . (bonus o k_t); null without
};
enum class Rule { plain, bonus, delta, rank_one };
#endif
}  // namespace tessera::kernels

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int kStrip = 4;  // vectors of a state's row that share the broadcasts of k and q

// decay[i] = exp(log_decay[i]) for i in [begin, end)
void decays(const float* log_decay, int64_t begin, int64_t end, float* decay) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, end - i);
    store_upto(exp_negative(load_upto(log_decay + i, n)), decay + i, n);
  }
}

// Some columns of a head's state, in place or copied so that they lie together.
struct Strip {
  int64_t h, column, width;
  float* state;  // row c begins at c * row
  int64_t row;
};

// What a head's token reads.
struct Token {
  const float *q, *k, *d;  // d: null, one number or one per channel
  const float* v;          // its part of the strip
  float* y;
  float rate, skip;

  Token(const LinearRecurrence& r, const RecurrenceSteps& steps, const Strip& s, int64_t t) {
    const int64_t head = t * r.H + s.h;
    const int64_t shared = r.shared_row(t, s.h);
    q = r.q + shared * r.K;
    k = r.k + shared * r.K;
    d = steps.decay == nullptr       ? nullptr
        : r.decay == DecayPer::head  ? steps.decay + s.h
        : r.decay == DecayPer::token ? steps.decay + head
                                     : steps.decay + head * r.K;
    v = r.v + head * r.V + s.column;
    y = r.y + head * r.V + s.column;
    rate = r.rate == nullptr ? 1.0f : r.rate[head];
    skip = r.skip == nullptr ? 0.0f : r.skip[s.h];
  }
};

// Loads and stores of a strip's vectors: only the last one of a strip of one can be partial.
template <int vectors>
struct Vectors {
  int64_t width;
  HWY_INLINE V32 read(const float* p, int i) const {
    return vectors > 1 ? load(p + i * kLanes) : load_upto(p, width);
  }
  HWY_INLINE void write(V32 x, float* p, int i) const {
    if (vectors > 1) return store(x, p + i * kLanes);
    store_upto(x, p, width);
  }
};

template <int vectors>
HWY_INLINE void keep_state(const LinearRecurrence& r, const Strip& s, int64_t t) {
  if (r.kept == nullptr || t % r.interval != 0) return;
  const Vectors<vectors> io{s.width};
  float* kept = r.kept + (t / r.interval * r.H + s.h) * r.K * r.V + s.column;
  for (int64_t c = 0; c < r.K; ++c)
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) io.write(io.read(s.state + c * s.row, i), kept + c * r.V, i);
}

// y of a token, from what was read from the state
template <int vectors>
HWY_INLINE void answer(const LinearRecurrence& r, const Strip& s, const Token& t, V32* out) {
  const Vectors<vectors> io{s.width};
#pragma GCC unroll 4
  for (int i = 0; i < vectors; ++i) {
    if (r.skip != nullptr) out[i] = hn::MulAdd(all(t.skip), io.read(t.v, i), out[i]);
    io.write(out[i], t.y, i);
  }
}

// Token t. Every column is computed by the same operations in the same order, whatever strip it is
// in: no sum crosses lanes.
template <Rule rule, int vectors>
HWY_INLINE void scan_token(const LinearRecurrence& r,
                           const RecurrenceSteps& steps,
                           const Strip& s,
                           int64_t t) {
  const Vectors<vectors> io{s.width};
  const Token now(r, steps, s, t);
  const int64_t head = t * r.H + s.h;
  const bool per_channel = r.decay == DecayPer::channel;
  const auto decay = [&](int64_t c) {
    return now.d == nullptr ? 1.0f : per_channel ? now.d[c] : *now.d;
  };
  V32 in[vectors], seen[vectors], out[vectors];
#pragma GCC unroll 4
  for (int i = 0; i < vectors; ++i) {
    in[i] = io.read(now.v, i);
    if (r.rate != nullptr) in[i] = hn::Mul(in[i], all(now.rate));
    seen[i] = zero();
    out[i] = zero();
  }
  // what the state holds in the direction that is corrected
  if constexpr (rule == Rule::delta || rule == Rule::rank_one) {
    for (int64_t c = 0; c < r.K; ++c) {
      const V32 along = all(rule == Rule::delta ? now.k[c] * decay(c) : r.a[head * r.K + c]);
#pragma GCC unroll 4
      for (int i = 0; i < vectors; ++i)
        seen[i] = hn::MulAdd(along, io.read(s.state + c * s.row, i), seen[i]);
    }
    if constexpr (rule == Rule::delta) {
#pragma GCC unroll 4
      for (int i = 0; i < vectors; ++i) in[i] = hn::Sub(in[i], seen[i]);
    }
  }
  const float rate = rule == Rule::delta ? r.beta[head] : 1.0f;
  for (int64_t c = 0; c < r.K; ++c) {
    const V32 keep = all(decay(c));
    const V32 key = all(rate * now.k[c]);
    const V32 query = all(now.q[c]);
    float* row = s.state + c * s.row;
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const V32 old = io.read(row, i);
      V32 fresh = hn::MulAdd(key, in[i], hn::Mul(keep, old));
      if constexpr (rule == Rule::rank_one)
        fresh = hn::MulAdd(all(r.b[head * r.K + c]), seen[i], fresh);
      io.write(fresh, row, i);
      out[i] = hn::MulAdd(query, rule == Rule::bonus ? old : fresh, out[i]);
    }
  }
  if constexpr (rule == Rule::bonus) {
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) out[i] = hn::MulAdd(all(steps.bonus[head]), in[i], out[i]);
  }
  answer<vectors>(r, s, now, out);
}

// Tokens t and t + 1 of the plain rules: the state goes through the registers once for both, for
// loads and stores take longer than the arithmetic. The operations are those of scan_token.
template <Rule rule, int vectors, bool per_channel>
HWY_INLINE void scan_two(const LinearRecurrence& r,
                         const RecurrenceSteps& steps,
                         const Strip& s,
                         int64_t t) {
  const Vectors<vectors> io{s.width};
  const Token first(r, steps, s, t), second(r, steps, s, t + 1);
  V32 in[2][vectors], out[2][vectors];
#pragma GCC unroll 4
  for (int i = 0; i < vectors; ++i) {
    in[0][i] = io.read(first.v, i);
    in[1][i] = io.read(second.v, i);
    if (r.rate != nullptr) {
      in[0][i] = hn::Mul(in[0][i], all(first.rate));
      in[1][i] = hn::Mul(in[1][i], all(second.rate));
    }
    out[0][i] = zero();
    out[1][i] = zero();
  }
  V32 keep0 = all(first.d == nullptr ? 1.0f : *first.d),
      keep1 = all(second.d == nullptr ? 1.0f : *second.d);
  for (int64_t c = 0; c < r.K; ++c) {
    if constexpr (per_channel) {
      keep0 = all(first.d[c]);
      keep1 = all(second.d[c]);
    }
    const V32 key0 = all(first.k[c]), key1 = all(second.k[c]);
    const V32 query0 = all(first.q[c]), query1 = all(second.q[c]);
    float* row = s.state + c * s.row;
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const V32 old = io.read(row, i);
      const V32 middle = hn::MulAdd(key0, in[0][i], hn::Mul(keep0, old));
      const V32 fresh = hn::MulAdd(key1, in[1][i], hn::Mul(keep1, middle));
      io.write(fresh, row, i);
      out[0][i] = hn::MulAdd(query0, rule == Rule::bonus ? old : middle, out[0][i]);
      out[1][i] = hn::MulAdd(query1, rule == Rule::bonus ? middle : fresh, out[1][i]);
    }
  }
  if constexpr (rule == Rule::bonus) {
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      out[0][i] = hn::MulAdd(all(steps.bonus[t * r.H + s.h]), in[0][i], out[0][i]);
      out[1][i] = hn::MulAdd(all(steps.bonus[(t + 1) * r.H + s.h]), in[1][i], out[1][i]);
    }
  }
  answer<vectors>(r, s, first, out[0]);
  answer<vectors>(r, s, second, out[1]);
}

template <Rule rule, int vectors>
void scan_strip(const LinearRecurrence& r, const RecurrenceSteps& steps, Strip s) {
  constexpr int64_t kWorthCopying = 8;  // tokens
  const Vectors<vectors> io{s.width};
  float* home = s.state;
  const int64_t home_row = s.row;
  const bool copied = r.T >= kWorthCopying;
  if (copied) {
    // rows of a wide state would meet in a few sets of the first cache level
    s.state = scratch<6>(r.K * vectors * kLanes);
    s.row = vectors * kLanes;
    for (int64_t c = 0; c < r.K; ++c)
#pragma GCC unroll 4
      for (int i = 0; i < vectors; ++i)
        io.write(io.read(home + c * home_row, i), s.state + c * s.row, i);
  }
  for (int64_t t = 0; t < r.T;) {
    keep_state<vectors>(r, s, t);
    if constexpr (rule == Rule::plain || rule == Rule::bonus) {
      const bool kept_between = r.kept != nullptr && (t + 1) % r.interval == 0;
      if (t + 1 < r.T && !kept_between) {
        if (r.decay == DecayPer::channel)
          scan_two<rule, vectors, true>(r, steps, s, t);
        else
          scan_two<rule, vectors, false>(r, steps, s, t);
        t += 2;
        continue;
      }
    }
    scan_token<rule, vectors>(r, steps, s, t++);
  }
  if (!copied) return;
  for (int64_t c = 0; c < r.K; ++c)
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i)
      io.write(io.read(s.state + c * s.row, i), home + c * home_row, i);
}

template <Rule rule>
void scan_strips(const LinearRecurrence& r,
                 const RecurrenceSteps& steps,
                 int64_t begin,
                 int64_t end) {
  constexpr int64_t kWide = kStrip * kLanes;
  const int64_t strips = (r.V + kWide - 1) / kWide;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t h = unit / strips;
    int64_t column = unit % strips * kWide;
    const int64_t stop = std::min(r.V, column + kWide);
    const auto strip = [&](int64_t width) {
      return Strip{h, column, width, r.state + h * r.K * r.V + column, r.V};
    };
    if (stop - column == kWide) {
      scan_strip<rule, kStrip>(r, steps, strip(kWide));
      continue;
    }
    for (; column < stop; column += kLanes)
      scan_strip<rule, 1>(r, steps, strip(std::min<int64_t>(kLanes, stop - column)));
  }
}

// strips [begin, end) of all heads' columns taken together
void scan(const LinearRecurrence& r, const RecurrenceSteps& steps, int64_t begin, int64_t end) {
  if (r.beta != nullptr) return scan_strips<Rule::delta>(r, steps, begin, end);
  if (r.a != nullptr) return scan_strips<Rule::rank_one>(r, steps, begin, end);
  if (r.bonus != nullptr) return scan_strips<Rule::bonus>(r, steps, begin, end);
  scan_strips<Rule::plain>(r, steps, begin, end);
}

int64_t strip_width() {
  return kStrip * kLanes;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(decays);
HWY_EXPORT(scan);
HWY_EXPORT(strip_width);

namespace {

int64_t decay_count(const LinearRecurrence& r) {
  switch (r.decay) {
    case DecayPer::nothing:
      return 0;
    case DecayPer::head:
      return r.H;
    case DecayPer::token:
      return r.T * r.H;
    case DecayPer::channel:
      return r.T * r.H * r.K;
  }
  return 0;
}

}  // namespace

void linear_recurrence(const LinearRecurrence& r) {
  require((r.beta != nullptr) + (r.a != nullptr) + (r.bonus != nullptr) <= 1 &&
              (r.a == nullptr) == (r.b == nullptr),
          "linear_recurrence", "at most one of beta, a with b, and bonus");
  require(r.G >= 0 && (r.G == 0 || r.H % r.G == 0), "linear_recurrence",
          "{} heads of q and k do not divide {}", r.G, r.H);
  require(r.kept == nullptr || r.interval > 0, "linear_recurrence", "interval = {}", r.interval);
  cap_targets();
  std::vector<float> decay(static_cast<size_t>(decay_count(r)));
  constexpr int64_t kGrain = int64_t{1} << 13;
  parallel_for(decay_count(r), kGrain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(decays)(r.log_decay, begin, end, decay.data());
  });
  std::vector<float> bonus(static_cast<size_t>(r.bonus != nullptr ? r.T * r.H : 0));
  if (r.bonus != nullptr)
    parallel_for(r.T * r.H, 1 + kGrain / (1 + r.K), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = r.shared_row(i / r.H, i % r.H);
        const float *q = r.q + row * r.K, *k = r.k + row * r.K, *u = r.bonus + i % r.H * r.K;
        double sum = 0;
        for (int64_t c = 0; c < r.K; ++c)
          sum += static_cast<double>(q[c]) * static_cast<double>(u[c]) * static_cast<double>(k[c]);
        bonus[static_cast<size_t>(i)] = static_cast<float>(sum);
      }
    });
  const RecurrenceSteps steps{decay.empty() ? nullptr : decay.data(),
                              bonus.empty() ? nullptr : bonus.data()};
  const int64_t width = HWY_DYNAMIC_DISPATCH(strip_width)();
  const int64_t strips = r.H * ((r.V + width - 1) / width);
  const int64_t grain = 1 + (int64_t{1} << 15) / (1 + r.T * r.K * std::min(width, r.V));
  parallel_for(strips, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scan)(r, steps, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
