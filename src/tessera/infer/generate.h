// Text from a model: prompts of any lengths in one batch, prefilled in few passes, then one token
// at a time. Beside an encoder the prompt is what the encoder reads, and the text is its answer. A
// row's tokens do not depend on the rows beside it, nor on how its prompt was cut into calls, nor
// on what of it was computed before (prefix_cache.h, session.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/infer/prefix_cache.h"
#include "tessera/infer/sampling.h"
#include "tessera/infer/session.h"
#include "tessera/model/model.h"
#include "tessera/text/tokenizer.h"

namespace tessera::infer {

/// Several tokens per pass of the model: cheap guesses are fed together, and as many are kept as
/// the model itself would have chosen. The text is that of plain generation, token for token,
/// sampled or not: what is chosen depends on logits, seed and position alone. Leviathan et al.
/// 2022, arXiv:2211.17192; look-up: Saxena 2023.
struct Speculation {
  const model::Model* draft = nullptr;  // a smaller model with the same tokens guesses
  int64_t lookup =
      0;  // or: what followed the last (at most so many) tokens where they stood before
  int64_t guesses = 4;  // per pass
  bool on() const { return draft != nullptr || lookup > 0; }
  /// Tokens that a state leaves pending.
  int64_t max_pending() const { return on() ? guesses + 1 : 0; }
};

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<int64_t> stop_ids;          // end of text; not part of the result
  std::vector<std::string> stop_strings;  // cut from the text, with what follows
  std::vector<int64_t> forced_begin;  // new tokens are these first; a row of a session has begun
  std::optional<int64_t> forced_end;  // the last of max_new_tokens, where the text goes so far
  int64_t context = 0;                // longest sequence; 0 = what the model is made for
  int64_t prefill_chunk = 1024;       // tokens per prefill call, over all rows
  Speculation speculation;
  spec::KvOptions kv;  // how keys and values are kept; those of a draft model in full
  PrefixCache* prefix_cache = nullptr;  // of this model: prompts that begin alike share the work
  /// Rows go on from here: every prompt continues its row, and may be empty. Without rows it begins
  /// with the prompts. Afterwards it holds where they ended, with the seed; after an error it is as
  /// it was. The end token of a text is no part of it, as it is none of the result.
  Session* session = nullptr;
  const CancelToken* cancel =
      nullptr;  // ends generation after the current token; what exists is returned
  /// Called once all of this has been found good, before anything is computed.
  std::function<void()> on_start;
  /// Called with text as it becomes certain (never half a character, never part of a stop string).
  /// Needs a tokenizer.
  std::function<void(size_t row, std::string_view text)> on_text;
};

struct Generation {
  std::vector<int64_t> token_ids;  // new ones
  std::string text;                // of the new tokens; empty without a tokenizer
  int64_t prompt_tokens = 0;       // all before the new ones; of the source, beside an encoder
  int64_t cached_tokens = 0;       // those of them that were not computed in this call
  std::string finish_reason;       // "stop", "length" or "cancelled"
};

struct Generations {
  std::vector<Generation> rows;
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t prefill_tokens = 0,
          decode_tokens = 0;  // over all rows; computed of the prompts, and generated after prefill
  int64_t guessed_tokens = 0, accepted_tokens = 0;  // of speculation
};

/// Throws Error(input) for an empty prompt, one longer than the model's context, or an id out of
/// range; Error(usage) for speculation with a model that cannot continue from a state, a draft
/// with other tokens, or prompts that do not fit the rows of a session.
Generations generate(const model::Model& model,
                     const text::Tokenizer* tokenizer,
                     const std::vector<std::vector<int64_t>>& prompts,
                     const GenerateOptions& options);

}  // namespace tessera::infer
