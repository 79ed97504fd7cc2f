// What a text has said bears on what it says next: the samplers that change single logits by the
// tokens before. No token moves by those of others.
#pragma once

#include "tessera/infer/sampling/sampling.h"

namespace tessera::infer {

/// Penalties of repetition, frequency and presence, by `seen`, of which the first `given` are the
/// prompt.
void apply_penalties(std::span<float> scores,
                     std::span<const int64_t> seen,
                     size_t given,
                     const SamplingOptions& options);
/// Tokens of `source` gain by a penalty above 1, as those seen lose.
void favour_source(std::span<float> scores, std::span<const int64_t> source, double penalty);
/// What ends a text gains as the answer, of `made` tokens, grows (exponential_decay_factor).
void hasten_end(std::span<float> scores, int64_t made, const SamplingOptions& options);
/// Forbids what would say a run of `size` tokens of `text` behind `seen`; 0 = nothing.
void block_ngrams(std::span<float> scores,
                  std::span<const int64_t> seen,
                  std::span<const int64_t> text,
                  int64_t size);
/// What each token loses by DRY.
void apply_dry(std::span<float> scores,
               std::span<const int64_t> seen,
               const SamplingOptions& options);
/// Adds to the last token of each sequence whose other tokens have just been said.
void bias_sequences(std::span<float> scores,
                    std::span<const int64_t> seen,
                    std::span<const std::pair<std::vector<int64_t>, double>> biases);

}  // namespace tessera::infer
