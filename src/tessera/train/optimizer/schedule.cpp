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

}  // namespace

std::string Schedule::fit(int64_t steps, const std::string& path) {
  if (warmup_fraction > 1)
    fail(ErrorKind::spec, path + ".warmup_fraction", "found {}; expected 0 to 1", warmup_fraction);
  if (warmup_fraction > 0 && warmup > 0)
    fail(ErrorKind::spec, path + ".warmup_fraction", "given together with warmup; expected one");
  if (warmup_fraction > 0) {
    warmup = std::llround(warmup_fraction * static_cast<double>(steps));
    if (type == ScheduleType::noam) warmup = std::max<int64_t>(1, warmup);
  }
  warmup_fraction = 0;
  if (warmup <= steps) return "";
  const int64_t asked = std::exchange(warmup, steps);
  return fmt::format("{}.warmup: {} steps are cut to {}, the steps of the run", path, asked, steps);
}

void Schedule::check(int64_t steps, const std::string& path) const {
  if (warmup > steps)
    fail(ErrorKind::spec, path + ".warmup", "{} steps of warm-up; the run has {}", warmup, steps);
  if (type == ScheduleType::noam && warmup == 0)
    fail(ErrorKind::spec, path + ".warmup", "found 0; \"noam\" falls from its end: expected steps");
  if (final_fraction > 1)
    fail(ErrorKind::spec, path + ".final_fraction", "found {}; expected 0 to 1", final_fraction);
  if (decay_fraction > 1)
    fail(ErrorKind::spec, path + ".decay_fraction", "found {}; expected 0 to 1", decay_fraction);
}

double Schedule::factor(int64_t t, int64_t steps) const {
  const auto now = static_cast<double>(t), w = static_cast<double>(warmup),
             total = static_cast<double>(steps);
  const double r = final_fraction;
  if (type == ScheduleType::noam) return std::min((now + 1) / w, std::sqrt(w / (now + 1)));
  if (t < warmup) return type == ScheduleType::wsd ? r + (1 - r) * now / w : now / w;
  if (type == ScheduleType::constant) return 1;
  if (type == ScheduleType::inverse_sqrt) {
    const double s = timescale > 0 ? static_cast<double>(timescale) : warmup > 0 ? w : 10000;
    return 1 / std::sqrt((now + s - w) / s);
  }
  double begin = w;  // of the decay
  if (type == ScheduleType::wsd) begin = std::max(w, total - std::round(decay_fraction * total));
  if (now < begin) return 1;
  double p = std::min(1.0, (now - begin) / std::max(1.0, total - begin));
  if (type == ScheduleType::cosine && cycles > 1 && p < 1)
    p = p * static_cast<double>(cycles) - std::floor(p * static_cast<double>(cycles));
  const DecayShape falls = type == ScheduleType::wsd      ? decay
                           : type == ScheduleType::linear ? DecayShape::linear
                                                          : DecayShape::cosine;
  return r + (1 - r) * shape(falls, p);
}

}  // namespace tessera::train
