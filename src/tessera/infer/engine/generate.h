// Text from a model: prompts of any lengths in one batch, prefilled in few passes, then one token
// at a time. Beside an encoder the prompt is what the encoder reads, and the text is its answer. A
// row's tokens do not depend on the rows beside it, nor on how its prompt was cut into calls, nor
// on what of it was computed before (prefix_cache.h, session.h).
#pragma once

#include <functional>
#include <vector>

#include "tessera/infer/engine/engine.h"
#include "tessera/infer/engine/session.h"

namespace tessera::infer {

struct GenerateOptions
    : DecodingOptions {          // forced_begin: not of a row of a session, which has begun
  int64_t prefill_chunk = 1024;  // tokens of prompts per call, over all rows
  /// Texts for each prompt, which is read once for them: row p choices + i is choice i of prompt p
  /// (Writing::choice). 1 with sessions and searches.
  int64_t choices = 1;
  std::optional<int64_t> logprobs = {};  // see Request
  Speculation speculation;
  spec::KvOptions kv;  // how keys and values are kept; those of a draft model in full
  PrefixCache* prefix_cache = nullptr;  // of this model: prompts that begin alike share the work
  /// What is answered instead of prompts, where an encoder reads features: one for each row.
  std::vector<Tensor> features;
  /// Rows go on from here: every prompt continues its row, and may be empty. Without rows it begins
  /// with the prompts. Afterwards it holds where they ended, with the seed; after an error it is as
  /// it was. The end token of a text is no part of it, as it is none of the result.
  Session* session = nullptr;
  int64_t expert_memory = 0;     // most bytes of routed experts (expert_memory.h); 0 = any
  nn::StatisticSink statistics;  // takes what parts count (expert_use.h), guesses among it
  const CancelToken* cancel =
      nullptr;  // ends generation after the current token; what exists is returned
  /// Called once all of this has been found good, before anything is computed.
  std::function<void()> on_start;
  /// Called with text as it becomes certain (never half a character, never part of a stop string).
  /// Needs a tokenizer.
  std::function<void(size_t row, std::string_view text)> on_text;
};

struct Generations : EngineCounts {
  std::vector<Generation> rows;
};

/// Throws Error(input) for an empty prompt, one longer than the model's context, or an id out of
/// range; Error(usage) for speculation with a model that cannot continue from a state, a draft
/// with other tokens, or prompts that do not fit the rows of a session. A row that fails ends with
/// its error while the others go on; when all fail, or a session was to be kept, the first error is
/// thrown.
Generations generate(const model::Model& model,
                     const text::Tokenizer* tokenizer,
                     const std::vector<std::vector<int64_t>>& prompts,
                     const GenerateOptions& options);

/// The same with a search for every prompt where `beams` are given (beam.h).
Generations run_requests(const model::Model& model,
                         const text::Tokenizer* tokenizer,
                         const std::vector<std::vector<int64_t>>& prompts,
                         const GenerateOptions& options,
                         const std::optional<BeamOptions>& beams);

}  // namespace tessera::infer
