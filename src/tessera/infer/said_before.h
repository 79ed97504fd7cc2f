// What a text has said bears on what it says next: the samplers that change single logits by the
// tokens before. No token moves by those of others.
#pragma once

#include "tessera/infer/sampling.h"

namespace tessera::infer {

/// Penalties of repetition, frequency and presence, by `seen`, of which the first `given` are the
/// prompt.
void penalise(std::span<float> scores,
              std::span<const int64_t> seen,
              size_t given,
              const SamplingOptions& options);
/// Forbids what would say a run of `size` tokens a second time.
void forbid_repeats(std::span<float> scores, std::span<const int64_t> seen, int64_t size);
/// What each token loses by DRY.
void hold_back_repeats(std::span<float> scores,
                       std::span<const int64_t> seen,
                       const SamplingOptions& options);
/// Forbids the last token of each word whose other tokens have just been said.
void forbid_words(std::span<float> scores,
                  std::span<const int64_t> seen,
                  std::span<const std::vector<int64_t>> words);

}  // namespace tessera::infer
