#include "tessera/kernels/linear_recurrence.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear_recurrence.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
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

// The columns [column, column + width) of head h over all tokens. Every column is computed by the
// same operations in the same order, whatever strip it is in: no sum crosses lanes.
template <Rule rule, int vectors>
HWY_INLINE void scan_columns(const LinearRecurrence& r,
                             const RecurrenceSteps& steps,
                             int64_t h,
                             int64_t column,
                             int64_t width) {
  // only the last vector of a strip of one can be partial
  const auto read = [&](const float* p, int i) HWY_ATTR {
    return vectors > 1 ? load(p + i * kLanes) : load_upto(p, width);
  };
  const auto write = [&](V32 x, float* p, int i) HWY_ATTR {
    if (vectors > 1) return store(x, p + i * kLanes);
    store_upto(x, p, width);
  };
  float* state = r.state + h * r.K * r.V + column;
  const bool per_channel = r.decay == DecayPer::channel;
  const int64_t shared = r.shared_row(0, h), shared_rows = r.shared_row(1, 0);
  for (int64_t t = 0; t < r.T; ++t) {
    if (r.kept != nullptr && t % r.interval == 0) {
      float* kept = r.kept + (t / r.interval * r.H + h) * r.K * r.V + column;
      for (int64_t c = 0; c < r.K; ++c)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; ++i) write(read(state + c * r.V, i), kept + c * r.V, i);
    }
    const int64_t head = t * r.H + h;
    const float* q = r.q + (shared + t * shared_rows) * r.K;
    const float* k = r.k + (shared + t * shared_rows) * r.K;
    const float* d = steps.decay == nullptr       ? nullptr
                     : r.decay == DecayPer::head  ? steps.decay + h
                     : r.decay == DecayPer::token ? steps.decay + head
                                                  : steps.decay + head * r.K;
    const auto decay = [&](int64_t c) { return d == nullptr ? 1.0f : per_channel ? d[c] : *d; };
    V32 in[vectors], seen[vectors], out[vectors];
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      in[i] = read(r.v + head * r.V + column, i);
      seen[i] = zero();
      out[i] = zero();
    }
    // what the state holds in the direction that is corrected
    if constexpr (rule == Rule::delta || rule == Rule::rank_one) {
      for (int64_t c = 0; c < r.K; ++c) {
        const V32 along = all(rule == Rule::delta ? k[c] * decay(c) : r.a[head * r.K + c]);
#pragma GCC unroll 4
        for (int i = 0; i < vectors; ++i)
          seen[i] = hn::MulAdd(along, read(state + c * r.V, i), seen[i]);
      }
      if constexpr (rule == Rule::delta) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; ++i) in[i] = hn::Sub(in[i], seen[i]);
      }
    }
    const float rate = rule == Rule::delta ? r.beta[head] : 1.0f;
    for (int64_t c = 0; c < r.K; ++c) {
      const V32 keep = all(decay(c));
      const V32 key = all(rate * k[c]);
      const V32 query = all(q[c]);
      float* row = state + c * r.V;
#pragma GCC unroll 4
      for (int i = 0; i < vectors; ++i) {
        const V32 old = read(row, i);
        V32 fresh = hn::MulAdd(key, in[i], hn::Mul(keep, old));
        if constexpr (rule == Rule::rank_one)
          fresh = hn::MulAdd(all(r.b[head * r.K + c]), seen[i], fresh);
        write(fresh, row, i);
        out[i] = hn::MulAdd(query, rule == Rule::bonus ? old : fresh, out[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      if constexpr (rule == Rule::bonus) out[i] = hn::MulAdd(all(steps.bonus[head]), in[i], out[i]);
      write(out[i], r.y + head * r.V + column, i);
    }
  }
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
    if (stop - column == kWide) {
      scan_columns<rule, kStrip>(r, steps, h, column, kWide);
      continue;
    }
    for (; column < stop; column += kLanes)
      scan_columns<rule, 1>(r, steps, h, column, std::min<int64_t>(kLanes, stop - column));
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
