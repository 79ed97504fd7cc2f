#include "tessera/train/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace tessera::train {
namespace {

double shape(DecayShape decay, double p) {
  switch (decay) {
    case DecayShape::linear:
      return 1 - p;
    case DecayShape::cosine:
      return (1 + std::cos(std::numbers::pi * p)) / 2;
    case DecayShape::one_minus_sqrt:
      return 1 - std::sqrt(p);
  }
  return 1 - p;
}

/// Share of the decay from `begin` to the end of the run that has passed.
double passed(double now, double begin, double total) {
  return std::min(1.0, (now - begin) / std::max(1.0, total - begin));
}

WarmupKeys& warmup_in(Schedule& schedule) {
  return std::visit([](auto& one) -> WarmupKeys& { return one; }, schedule);
}

}  // namespace

double CosineSchedule::factor(int64_t t, int64_t steps) const {
  const auto now = static_cast<double>(t), w = static_cast<double>(warmup);
  if (t < warmup) return now / w;
  double p = passed(now, w, static_cast<double>(steps));
  if (cycles > 1 && p < 1)
    p = p * static_cast<double>(cycles) - std::floor(p * static_cast<double>(cycles));
  return final_fraction + (1 - final_fraction) * shape(DecayShape::cosine, p);
}

double ConstantSchedule::factor(int64_t t, int64_t) const {
  return t < warmup ? static_cast<double>(t) / static_cast<double>(warmup) : 1;
}

double LinearSchedule::factor(int64_t t, int64_t steps) const {
  const auto now = static_cast<double>(t), w = static_cast<double>(warmup);
  if (t < warmup) return now / w;
  const double p = passed(now, w, static_cast<double>(steps));
  return final_fraction + (1 - final_fraction) * shape(DecayShape::linear, p);
}

double WsdSchedule::factor(int64_t t, int64_t steps) const {
  const auto now = static_cast<double>(t), w = static_cast<double>(warmup),
             total = static_cast<double>(steps);
  const double r = final_fraction;
  if (t < warmup) return r + (1 - r) * now / w;
  const double begin = std::max(w, total - std::round(decay_fraction * total));
  if (now < begin) return 1;
  return r + (1 - r) * shape(decay, passed(now, begin, total));
}

double InverseSqrtSchedule::factor(int64_t t, int64_t) const {
  const auto now = static_cast<double>(t), w = static_cast<double>(warmup);
  if (t < warmup) return now / w;
  const double s = timescale > 0 ? static_cast<double>(timescale) : warmup > 0 ? w : 10000;
  return 1 / std::sqrt((now + s - w) / s);
}

double NoamSchedule::factor(int64_t t, int64_t) const {
  const auto now = static_cast<double>(t), w = static_cast<double>(warmup);
  return std::min((now + 1) / w, std::sqrt(w / (now + 1)));
}

const WarmupKeys& warmup_of(const Schedule& schedule) {
  return std::visit([](const auto& one) -> const WarmupKeys& { return one; }, schedule);
}

std::string fit_schedule(Schedule& schedule, int64_t steps, const std::string& path) {
  WarmupKeys& keys = warmup_in(schedule);
  if (keys.warmup_fraction > 0 && keys.warmup > 0)
    fail(ErrorKind::spec, path + ".warmup_fraction", "given together with warmup; expected one");
  if (keys.warmup_fraction > 0) {
    keys.warmup = std::llround(keys.warmup_fraction * static_cast<double>(steps));
    if (std::holds_alternative<NoamSchedule>(schedule))
      keys.warmup = std::max<int64_t>(1, keys.warmup);
  }
  keys.warmup_fraction = 0;
  if (keys.warmup <= steps) return "";
  const int64_t asked = std::exchange(keys.warmup, steps);
  return fmt::format("{}.warmup: {} steps are cut to {}, the steps of the run", path, asked, steps);
}

void check_schedule(const Schedule& schedule, int64_t steps, const std::string& path) {
  const WarmupKeys& keys = warmup_of(schedule);
  if (keys.warmup > steps)
    fail(ErrorKind::spec, path + ".warmup", "{} steps of warm-up; the run has {}", keys.warmup,
         steps);
  if (std::holds_alternative<NoamSchedule>(schedule) && keys.warmup == 0)
    fail(ErrorKind::spec, path + ".warmup", "found 0; \"noam\" falls from its end: expected steps");
}

double rate_factor(const Schedule& schedule, int64_t t, int64_t steps) {
  return std::visit([&](const auto& one) { return one.factor(t, steps); }, schedule);
}

}  // namespace tessera::train
