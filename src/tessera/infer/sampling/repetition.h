// Samplers that change single logits by the tokens before: penalties, n-gram blocking, DRY, bias of
// sequences. The change of a token does not depend on other tokens' logits.
#pragma once

#include "tessera/infer/sampling/sampling.h"

namespace tessera::infer {

/// Repetition, frequency and presence penalties over `seen`, of which the first `given` tokens are
/// the prompt.
void apply_penalties(std::span<float> scores,
                     std::span<const int64_t> seen,
                     size_t given,
                     const SamplingOptions& options);
/// Tokens of `source` gain by a penalty above 1 as much as repeated tokens lose.
void favour_source(std::span<float> scores, std::span<const int64_t> source, double penalty);
/// Raises the logits of stop tokens as the answer, of `made` tokens so far, grows
/// (exponential_decay_factor).
void hasten_end(std::span<float> scores, int64_t made, const SamplingOptions& options);
/// Sets tokens to -infinity that would complete after `seen` an n-gram of `size` tokens that is in
/// `text`; 0 = off.
void block_ngrams(std::span<float> scores,
                  std::span<const int64_t> seen,
                  std::span<const int64_t> text,
                  int64_t size);
/// Subtracts the DRY penalty of each token.
void apply_dry(std::span<float> scores,
               std::span<const int64_t> seen,
               const SamplingOptions& options);
/// Adds the bias to the last token of each sequence whose other tokens are the last ones of `seen`.
void bias_sequences(std::span<float> scores,
                    std::span<const int64_t> seen,
                    std::span<const std::pair<std::vector<int64_t>, double>> biases);

}  // namespace tessera::infer
