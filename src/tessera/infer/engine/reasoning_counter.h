// Counts reasoning tokens to enforce a ReasoningBudget. It follows the answer token by token in
// constant time each, so neither a long answer nor a context shift changes the result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/infer/engine/request.h"

namespace tessera::infer {

class ReasoningCounter {
 public:
  explicit ReasoningCounter(ReasoningBudget limit);

  /// Advances by the next token of the answer.
  void take(int64_t id) { advance(state_, id); }
  /// The token of the closing tag that must follow the tokens so far and `further` ones, which may
  /// be draft tokens; nullopt if any token may follow.
  std::optional<int64_t> next(std::span<const int64_t> further) const;

 private:
  struct State {
    bool opened = false, closed = false;
    int64_t reasoning = 0;      // tokens after the opening tag
    std::vector<int64_t> tail;  // the last tokens, as many as the longer tag has
  };
  void advance(State& state, int64_t id) const;

  ReasoningBudget limit_;
  State state_;
};

}  // namespace tessera::infer
