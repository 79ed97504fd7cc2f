#include "tessera/infer/engine/reasoning_counter.h"

#include <algorithm>
#include <utility>

namespace tessera::infer {
namespace {

bool ends_with(const std::vector<int64_t>& tokens, const std::vector<int64_t>& tag) {
  return !tag.empty() && tokens.size() >= tag.size() &&
         std::equal(tag.rbegin(), tag.rend(), tokens.rbegin());
}

}  // namespace

ReasoningCounter::ReasoningCounter(ReasoningBudget limit) : limit_(std::move(limit)) {
  state_.opened = limit_.opened;
}

void ReasoningCounter::advance(State& state, int64_t id) const {
  if (state.closed) return;
  const size_t longest = std::max(limit_.open.size(), limit_.close.size());
  if (longest > 0 && state.tail.size() == longest) state.tail.erase(state.tail.begin());
  state.tail.push_back(id);
  if (state.opened) {
    ++state.reasoning;
    state.closed = ends_with(state.tail, limit_.close);
  } else if (ends_with(state.tail, limit_.open)) {
    state.opened = true;
    state.tail.clear();  // a closing tag lies within the thoughts
  }
}

std::optional<int64_t> ReasoningCounter::next(std::span<const int64_t> further) const {
  State state = state_;
  for (const int64_t id : further) advance(state, id);
  if (!state.opened || state.closed || state.reasoning < limit_.most) return std::nullopt;
  const int64_t said = state.reasoning - limit_.most;
  if (said >= static_cast<int64_t>(limit_.close.size())) return std::nullopt;
  return limit_.close[static_cast<size_t>(said)];
}

}  // namespace tessera::infer
