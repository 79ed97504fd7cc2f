#include "tessera/model/call_plan.h"

#include <algorithm>

#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::model {

CallPlan::CallPlan(const ModelSpec& spec)
    : whole_reason_(spec.no_state_reason()), max_positions_(spec.max_positions()) {
  for_each_part(spec, [&](const AnyPart& part) {
    const auto* pattern = dynamic_cast<const nn::PatternConfig*>(part.config.get());
    if (spec.causal() && pattern != nullptr && pattern->prefix(1) > 0) patterns_.push_back(pattern);
    const auto* position = dynamic_cast<const nn::PositionConfig*>(part.config.get());
    if (position != nullptr && position->angles_change()) positions_.push_back(position);
  });
}

bool CallPlan::reads_given() const {
  return !patterns_.empty();
}

int64_t CallPlan::first_call(int64_t given) const {
  int64_t longest = 0;
  for (const nn::PatternConfig* pattern : patterns_)
    longest = std::max(longest, pattern->prefix(given));
  return longest;
}

int64_t CallPlan::until(int64_t length) const {
  int64_t until = nn::kAnglesStay;
  for (const nn::PositionConfig* position : positions_)
    until = std::min(until, position->angles_until(length));
  return until;
}

int64_t CallPlan::longest_in_cuts() const {
  const int64_t angles = until_in_cuts();
  if (angles == nn::kAnglesStay) return max_positions_;
  return max_positions_ > 0 ? std::min(max_positions_, angles) : angles;
}

}  // namespace tessera::model
