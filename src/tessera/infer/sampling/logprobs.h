// Log-probabilities of tokens: by the model's own distribution, before temperature, penalties,
// masks and filters, or by the distribution that tokens are drawn from (sampling.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::infer {

struct TokenLogprob {
  int64_t id = 0;
  double log_p = 0;
};

/// One position: the chosen token and the most likely ones.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first; ties go to the lower id
};

/// Log-softmax of logits [C] in double, in a fixed order of summation: the result depends on the
/// logits only. Throws Error(input) if no logit is finite.
PositionLogprobs logprobs_of(std::span<const float> logits, int64_t chosen, int64_t top);

}  // namespace tessera::infer
