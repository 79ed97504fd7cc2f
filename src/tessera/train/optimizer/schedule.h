// Learning-rate schedules: warm-up, then one of several shapes. Torch-free.
//
// factor(t) multiplies the base rate of update number t + 1, t = 0, 1, ... previous updates. With W
// warm-up steps, T total steps and final ratio r:
//   constant  f = 1 after warm-up
//   linear    f = r + (1 - r) (1 - p),               p = (t - W) / (T - W) clamped to [0, 1]
//   cosine    f = r + (1 - r) (1 + cos(pi p)) / 2
//             with `cycles` above 1, p runs through [0, 1) as often (Loshchilov, Hutter 2016,
//             arXiv:1608.03983, cycles of one length)
//   inverse_sqrt  f = ((t + s - W) / s)^-1/2,         s = timescale, or W, or 10000 without W
//   noam      f = min(n / W, (W / n)^1/2), n = t + 1: the base rate is the peak (Vaswani et al.
//             2017, arXiv:1706.03762: d^-1/2 W^-1/2)
//   wsd       1 until the last `decay_fraction` of the steps, which fall to r along `decay`
// Warm-up rises from 0 as t / W, of noam as n / W; wsd, as published (Hu et al. 2024,
// arXiv:2404.06395), from r.
#pragma once

#include <string>
#include <tuple>
#include <variant>

#include "tessera/spec/type_union.h"
#include "tessera/train/recipe/counts.h"

namespace tessera::train {

enum class DecayShape { linear, cosine, one_minus_sqrt };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::DecayShape> {
  using E = tessera::train::DecayShape;
  static constexpr std::array names{std::pair{E::linear, "linear"}, std::pair{E::cosine, "cosine"},
                                    std::pair{E::one_minus_sqrt, "one_minus_sqrt"}};
};

namespace tessera::train {

// --- keys of each type: kName in recipes; factor(t, steps) is f of the update after t others ---

/// Keys of every schedule.
struct WarmupKeys {
  int64_t warmup = 0;           // steps
  double warmup_fraction = 0;   // of the steps, instead of warmup
  double final_fraction = 0.1;  // of the base rate

  static constexpr auto fields() {
    using C = WarmupKeys;
    using spec::field;
    return std::tuple{
        field("warmup", &C::warmup, "warm-up steps of the learning rate",
              {.min = 0, .max = kMaxCount}),
        field("warmup_fraction", &C::warmup_fraction,
              "instead of warmup: warm-up as a share of the steps", {.min = 0, .max = 1}),
        field("final_fraction", &C::final_fraction,
              "final learning rate, relative to the base rate", {.min = 0, .max = 1})};
  }
};

struct CosineSchedule : WarmupKeys {
  static constexpr const char* kName = "cosine";
  int64_t cycles = 1;
  static constexpr auto fields() {
    return std::tuple_cat(WarmupKeys::fields(),
                          std::tuple{spec::field("cycles", &CosineSchedule::cycles,
                                                 "number of cycles (restarts)", {.min = 1})});
  }
  double factor(int64_t t, int64_t steps) const;
};

struct ConstantSchedule : WarmupKeys {
  static constexpr const char* kName = "constant";
  double factor(int64_t t, int64_t steps) const;
};

struct LinearSchedule : WarmupKeys {
  static constexpr const char* kName = "linear";
  double factor(int64_t t, int64_t steps) const;
};

struct WsdSchedule : WarmupKeys {
  static constexpr const char* kName = "wsd";
  double decay_fraction = 0.2;
  DecayShape decay = DecayShape::one_minus_sqrt;
  static constexpr auto fields() {
    using C = WsdSchedule;
    using spec::field;
    return std::tuple_cat(WarmupKeys::fields(),
                          std::tuple{field("decay_fraction", &C::decay_fraction,
                                           "share of the steps that decay", {.min = 0, .max = 1}),
                                     field("decay", &C::decay, "shape of the decay")});
  }
  double factor(int64_t t, int64_t steps) const;
};

struct InverseSqrtSchedule : WarmupKeys {
  static constexpr const char* kName = "inverse_sqrt";
  int64_t timescale = 0;
  static constexpr auto fields() {
    return std::tuple_cat(
        WarmupKeys::fields(),
        std::tuple{spec::field(
            "timescale", &InverseSqrtSchedule::timescale,
            "steps after warm-up until the rate has decayed to the root of a half; 0 = warmup, or "
            "10000 without",
            {.min = 0})});
  }
  double factor(int64_t t, int64_t steps) const;
};

struct NoamSchedule : WarmupKeys {
  static constexpr const char* kName = "noam";
  double factor(int64_t t, int64_t steps) const;
};

/// The table of schedules.
using Schedule = std::variant<CosineSchedule,
                              ConstantSchedule,
                              LinearSchedule,
                              WsdSchedule,
                              InverseSqrtSchedule,
                              NoamSchedule>;

const WarmupKeys& warmup_of(const Schedule& schedule);

/// Converts warmup_fraction to steps, and shortens a warm-up longer than a run of `steps`; returns
/// a line about that, or "". Throws Error(spec) at `path` if both are given.
std::string fit_schedule(Schedule& schedule, int64_t steps, const std::string& path);
/// Throws Error(spec) at `path` if the values do not fit a run of `steps`.
void check_schedule(const Schedule& schedule, int64_t steps, const std::string& path);
/// f(t) for a run of `steps` steps; after its end the last value.
double rate_factor(const Schedule& schedule, int64_t t, int64_t steps);

}  // namespace tessera::train
