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

#include <tuple>

#include "tessera/spec/fields.h"
#include "tessera/spec/keys_of_types.h"

namespace tessera::train {

enum class ScheduleType { constant, linear, cosine, wsd, inverse_sqrt, noam };
enum class DecayShape { linear, cosine, one_minus_sqrt };

struct Schedule {
  ScheduleType type = ScheduleType::cosine;
  int64_t warmup = 0;                             // steps
  double warmup_fraction = 0;                     // of the steps, instead of warmup
  double final_fraction = 0.1;                    // of the base rate
  double decay_fraction = 0.2;                    // of the steps; wsd
  DecayShape decay = DecayShape::one_minus_sqrt;  // wsd
  int64_t cycles = 1;                             // cosine
  int64_t timescale = 0;                          // inverse_sqrt; 0 = warmup

  static constexpr auto fields() {
    using C = Schedule;
    using spec::field;
    return std::tuple{
        field("type", &C::type, "shape after warm-up"),
        field("warmup", &C::warmup, "warm-up steps of the learning rate", {.min = 0}),
        field("warmup_fraction", &C::warmup_fraction,
              "instead of warmup: warm-up as a share of the steps", {.min = 0}),
        field("final_fraction", &C::final_fraction,
              "final learning rate, relative to the base rate", {.min = 0}),
        field("decay_fraction", &C::decay_fraction, "wsd: share of the steps that decay",
              {.min = 0}),
        field("decay", &C::decay, "wsd: shape of the decay"),
        field("cycles", &C::cycles, "cosine: number of cycles (restarts)", {.min = 1}),
        field("timescale", &C::timescale,
              "inverse_sqrt: steps after warm-up until the rate has decayed to the root of a half; "
              "0 = warmup, or 10000 without",
              {.min = 0})};
  }
  static constexpr std::array keys_of_types{
      spec::KeyOfTypes{"decay_fraction", "wsd"}, spec::KeyOfTypes{"decay", "wsd"},
      spec::KeyOfTypes{"cycles", "cosine"}, spec::KeyOfTypes{"timescale", "inverse_sqrt"}};
  /// Converts warmup_fraction to steps, and shortens a warm-up longer than a run of `steps`;
  /// returns a line about that, or "". Throws Error(spec) at `path` if both are given.
  std::string fit(int64_t steps, const std::string& path);
  /// Throws Error(spec) at `path` if the values do not fit a run of `steps`.
  void check(int64_t steps, const std::string& path) const;
  /// f(t) for a run of `steps` steps; after its end the last value.
  double factor(int64_t t, int64_t steps) const;
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::ScheduleType> {
  using E = tessera::train::ScheduleType;
  static constexpr std::array names{std::pair{E::constant, "constant"},
                                    std::pair{E::linear, "linear"},
                                    std::pair{E::cosine, "cosine"},
                                    std::pair{E::wsd, "wsd"},
                                    std::pair{E::inverse_sqrt, "inverse_sqrt"},
                                    std::pair{E::noam, "noam"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::DecayShape> {
  using E = tessera::train::DecayShape;
  static constexpr std::array names{std::pair{E::linear, "linear"}, std::pair{E::cosine, "cosine"},
                                    std::pair{E::one_minus_sqrt, "one_minus_sqrt"}};
};
