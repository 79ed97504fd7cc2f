// Beam search: the sequence that the model finds most likely, as far as so many hypotheses kept
// side by side can find it.
//
//   score(y) = log p(y | prompt) / |y|^length_penalty,   |y| counts new tokens, the end included
//
// Each step extends every hypothesis by every token and ranks what comes out by log p. Of the best
// `beams`, those that end (by a stop token, or a stop string that their text completes) are put
// aside with their score; the best `beams` that go on are kept. What changes single logits (biases,
// penalties, blocked n-grams, shortest length) changes log p in its place, as in transformers. The
// search of a prompt ends as `early_stopping` says once `beams` hypotheses have ended, or at the
// longest length, where the hypotheses left count as finished. Without a length penalty one beam
// gives the greedy text. Deterministic: ties go to the earlier beam, then the smaller id.
#pragma once

#include "tessera/infer/engine/generate.h"

namespace tessera::infer {

/// As generate(), with the best sequence found in place of a sample: temperature and filters have
/// no effect. Stop strings without a tokenizer are refused with Error(usage).
Generations beam_search(const model::Model& model,
                        const text::Tokenizer* tokenizer,
                        const std::vector<std::vector<int64_t>>& prompts,
                        const GenerateOptions& options,
                        const BeamOptions& beams);

}  // namespace tessera::infer
