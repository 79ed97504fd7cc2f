// What the contract suite runs over: for every registered mechanism, tiny models around it.
//
// Registering a mechanism joins the suite. Its required fields are derived from its schema (an
// integer becomes 4, a number 2); every boolean and every enum of its config gives one more case
// per value. Where the derived config does not fit, or a combination deserves a case, samples() in
// cases.cpp has a line.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera::contract {

using spec::Json;
using spec::Slot;

inline constexpr int64_t kVocab = 11;
inline constexpr int64_t kWidth = 8;  // d_model
inline constexpr int64_t kHeads = 2;
inline constexpr int64_t kSource = 6;  // tokens that an encoder reads

/// One config of one mechanism (or a whole spec of its own), and the models that hold it.
struct Case {
  std::string name;                            // "mixer_attention_gqa": part of the test's name
  const spec::Mechanism* mechanism = nullptr;  // null for whole specs
  Json part;                                   // {"type": ..., ...}
  Json decoder;                                // of what refuses decoders, the encoder
  Json encoder;               // null when the mechanism refuses encoders, or nothing else
  bool encoder_only = false;  // it is refused in decoders since it needs an encoder, or
  bool asked_whole = false;   // it is a head of no tokens, so that a decoder has no next token
  bool chosen = false;        // the derived config or a sample: no variant in one field alone
  std::string problem;        // why no model could be made; names the line to add
};

/// Those of one mechanism; `fields` are added to its derived config.
std::vector<Case> cases_of(const spec::Mechanism& mechanism, const Json& fields = Json::object());
/// Those of all mechanisms, and whole specs.
const std::vector<Case>& cases();

/// How large the models are.
struct Size {
  int64_t width = kWidth, heads = kHeads, hidden = 12;
};
inline constexpr Size kWide{96, 4, 160};

/// Surroundings in which a part of this slot can be read alone.
spec::Scope scope_for(const spec::Mechanism& mechanism, bool causal = true, const Size& size = {});
/// The same for a case's part.
spec::Scope scope_for(const Case& c);
/// The model of `arch` with `part` in its slot.
Json host(const spec::Mechanism& mechanism,
          const Json& part,
          const std::string& arch,
          const Size& size = {});
/// Specs of size kWide to try, best first, for documents of up to `length` tokens: with the case's
/// part, whose tables of positions are made long enough, and with its mechanism's example.
std::vector<Json> wide_specs(const Case& c, int64_t length);
/// Mamba-2, a shared layer, a windowed and a full attention layer, a parallel residual, a branch
/// list.
Json hybrid();
/// A pair whose decoder sees targets whole, by attention and by Mamba-2 both ways.
Json whole_targets();
/// A block of attention and feed-forward layer that two layers share and adapt, over the stream and
/// the embedding, concatenated, read by Mamba.
Json shared_blocks();

/// Heads of two sizes, keys and values that later layers use, per-layer embeddings of stream and
/// embedding, a scalar of each layer.
Json per_layer();
/// Streams with a gate for each channel, a memory of n-grams, a pooled indexer.
Json ngram_memories();

}  // namespace tessera::contract
