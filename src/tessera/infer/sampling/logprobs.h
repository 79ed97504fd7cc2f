// How likely tokens are: by a model's own distribution, before temperature, penalties, masks and
// filters; or by the one that they are drawn from (sampling.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::infer {

struct TokenLogprob {
  int64_t id = 0;
  double log_p = 0;
};

/// Of one place of a text: what came there, and what was likely to.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the most likely, best first; of equals the lower id
};

/// In double and one fixed order, so that they follow from the logits alone. Throws Error(input)
/// when no logit is finite.
PositionLogprobs logprobs_of(std::span<const float> logits, int64_t chosen, int64_t top);

}  // namespace tessera::infer
