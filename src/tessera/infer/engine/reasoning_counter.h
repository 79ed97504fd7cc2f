// How many tokens a model may think before it answers (ReasoningBudget). It follows an answer token
// by token, in constant time each, so that neither a long answer nor a context shift changes it.
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

  /// Takes in the next token of the answer.
  void take(int64_t id) { advance(state_, id); }
  /// The token of the closing tag that must follow the tokens taken in and `further` ones, which
  /// may be guesses; nullopt where the model is free.
  std::optional<int64_t> next(std::span<const int64_t> further) const;

 private:
  struct State {
    bool opened = false, closed = false;
    int64_t reasoning = 0;      // tokens behind the opening tag
    std::vector<int64_t> tail;  // the last tokens, as many as a tag has
  };
  void advance(State& state, int64_t id) const;

  ReasoningBudget limit_;
  State state_;
};

}  // namespace tessera::infer
