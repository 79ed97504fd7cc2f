// Beam search: approximates the most likely sequence with `beams` hypotheses in parallel.
//
//   score(y) = log p(y | prompt) / |y|^length_penalty,   |y| counts new tokens, the end included
//
// Each step extends every hypothesis by every token and ranks the candidates by log p. Of the best
// `beams` candidates, those that end (with a stop token, or by completing a stop string) are
// finished and keep their score. The best `beams` candidates that do not end are the next
// hypotheses. Logit processors (biases, penalties, blocked n-grams, minimum length) change log p,
// as in transformers. The search of a prompt ends as `early_stopping` defines once `beams`
// hypotheses have finished, or at the maximum length, where the remaining hypotheses count as
// finished. With one beam and no length penalty the result is the greedy text. Deterministic: ties
// go to the earlier beam, then to the smaller id.
#pragma once

#include "tessera/infer/engine/generate.h"

namespace tessera::infer {

/// As generate(), with beam search instead of sampling: temperature and filters have no effect.
/// Throws Error(usage) for stop strings without a tokenizer.
Generations beam_search(const model::Model& model,
                        const text::Tokenizer* tokenizer,
                        const std::vector<std::vector<int64_t>>& prompts,
                        const GenerateOptions& options,
                        const BeamOptions& beams);

}  // namespace tessera::infer
