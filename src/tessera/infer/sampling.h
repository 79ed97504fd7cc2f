// Choosing the next token from logits. Order: bias, penalties (repetition, frequency, presence),
// temperature, top-k, top-p, min-p.
//
// The probabilities are whole numbers: exp((logit - best) / temperature), rounded to a multiple of
// 2^-b with b = 63 - bits of the vocabulary's size, at most 52. Their sums are exact in any order,
// so that the vocabulary need not be sorted: it is put into bands of logits, and only the band in
// which a filter ends or the draw falls is.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/rng.h"

namespace tessera::infer {

struct SamplingOptions {
  double temperature = 0;  // 0 = the most likely token (greedy)
  int64_t top_k = 0;       // keep the k most likely; 0 = all
  double top_p = 1;  // keep the fewest most likely whose probabilities reach p (Holtzman et al.
                     // 2019, arXiv:1904.09751); 0 = the most likely token
  double min_p = 0;  // keep those at least min_p times as likely as the best (arXiv:2407.01082)
  double repetition_penalty =
      1;  // logits of seen tokens are divided (positive) or multiplied by it (arXiv:1909.05858)
  /// Logits of tokens said fall by `presence`, and by `frequency` for each time that they were.
  double presence_penalty = 0, frequency_penalty = 0;
  /// Penalties look at the last so many tokens, all three at prompt and answer alike. -1: the first
  /// looks at all, the other two at all of the answer.
  int64_t repeat_last_n = -1;
  std::vector<std::pair<int64_t, double>> logit_bias = {};  // added; -infinity = never
  uint64_t seed = 0;

  /// Throws Error(usage) naming the option out of range.
  void check() const;
};

/// Bias and penalties, on the scores of what may come after `seen`, of which the first `given` are
/// the prompt. No token moves by those of others.
void adjust(std::span<float> scores,
            std::span<const int64_t> seen,
            size_t given,
            const SamplingOptions& options);

/// The next token after `seen` tokens, of which the first `given` are the prompt; `key` is the
/// row's stream, and the number of seen tokens its index, so that a row's text does not depend on
/// its batch. Ties go to the lowest id. Throws Error(input) when no logit is finite.
int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key,
               size_t given = 0);

}  // namespace tessera::infer
