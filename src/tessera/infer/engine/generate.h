// Text generation: prompts of any lengths as one batch, prefilled in few calls, then decoded token
// by token. For encoder-decoder models the prompt is the encoder's input. The tokens of a row
// depend neither on the other rows, nor on prefill chunks, nor on cached state (prefix_cache.h,
// session.h).
#pragma once

#include <functional>
#include <vector>

#include "tessera/infer/engine/engine.h"
#include "tessera/infer/engine/session.h"

namespace tessera::infer {

struct GenerateOptions : DecodingOptions {  // forced_begin: not for rows resumed from a session
  int64_t prefill_chunk = 1024;             // max. prompt tokens per call, over all rows
  /// Completions per prompt, which is prefilled once: row p * choices + i is choice i of prompt p
  /// (DecodingOptions::choice). Must be 1 with sessions and beam search.
  int64_t choices = 1;
  std::optional<int64_t> logprobs = {};  // see Request
  Speculation speculation;
  spec::KvOptions
      kv;  // storage type and eviction of the KV cache; a draft model's cache stays float32
  PrefixCache* prefix_cache = nullptr;  // of this model; reuses common prefixes of prompts
  /// Encoder inputs that replace prompts for a model with a feature encoder: one per row.
  std::vector<Tensor> features;
  /// Every prompt continues its row of the session and may be empty. A session without rows starts
  /// with the prompts. After the call it holds the final rows and the seed; after an error it is
  /// unchanged. The end-of-text token is neither in the session nor in the result.
  Session* session = nullptr;
  int64_t expert_memory =
      0;  // max. bytes of routed experts in memory (expert_memory.h); 0 = no limit
  nn::StatisticSink statistics;  // receives statistics (expert_use.h), also of draft tokens
  const CancelToken* cancel =
      nullptr;  // ends generation after the current token; partial results are returned
  /// Called once the options have been checked, before anything is computed.
  std::function<void()> on_start;
  /// Streaming: called with text as soon as it is final (whole characters, never part of a stop
  /// string). Needs a tokenizer.
  std::function<void(size_t row, std::string_view text)> on_text;
};

struct Generations : EngineCounts {
  std::vector<Generation> rows;
};

/// Throws Error(input) for an empty prompt, a prompt longer than the context, or an id outside the
/// vocabulary. Throws Error(usage) for speculation with a model that cannot continue from a state,
/// a draft model with another vocabulary, or prompts that do not match the session's rows. A row
/// that fails ends with its error while the others continue. If all rows fail, or a session is
/// given, the first error is thrown.
Generations generate(const model::Model& model,
                     const text::Tokenizer* tokenizer,
                     const std::vector<std::vector<int64_t>>& prompts,
                     const GenerateOptions& options);

/// As generate(), or beam search for every prompt if `beams` is set (beam.h).
Generations run_requests(const model::Model& model,
                         const text::Tokenizer* tokenizer,
                         const std::vector<std::vector<int64_t>>& prompts,
                         const GenerateOptions& options,
                         const std::optional<BeamOptions>& beams);

}  // namespace tessera::infer
