// How text is decoded where a user leaves it open: as the model's makers say
// (generation_config.json, general.sampling.* of a GGUF file), else as the program does.
#pragma once

#include "tessera/convert/generation_config.h"
#include "tessera/infer/engine/request.h"

namespace tessera::infer {

/// What the text is. Where the makers do not say that tokens are drawn, a continuation is greedy,
/// as transformers' is; answers in a conversation are sampled at temperature 0.7 and min_p 0.05,
/// since small models repeat themselves otherwise. `temperature` or a filter without `do_sample`
/// means sampling in a conversation alone, as servers take it.
enum class TextKind { continuation, conversation };

struct DecodingDefaults {
  SamplingOptions sampling;               // with biases and banned sequences
  std::optional<BeamOptions> beams = {};  // a search instead
  std::optional<int64_t> max_new_tokens = {};
  int64_t max_length = 0, min_new_tokens = 0, min_length = 0;  // see Writing
  std::vector<std::string> stop_strings = {};
  std::vector<int64_t> begin_suppress = {};
  std::optional<int64_t> forced_begin = {}, forced_end = {};
  std::vector<std::string> unsupported =
      {};                   // keys of the makers without effect, with their values
  std::string source = {};  // where the makers say so; empty: they do not
};

DecodingDefaults decoding_defaults(const convert::GenerationConfig& config, TextKind kind);

/// Takes over what stands beside numbers of sampling and lengths: biases, banned sequences, what
/// may not begin a text.
void take_bans(const DecodingDefaults& defaults, DecodingOptions& decoding);

/// For people: "greedy", "temperature 0.7, min-p 0.05, seed 3" or "beam search with 4 beams", then
/// penalties and limits that are set.
std::string describe(const DecodingOptions& decoding, const std::optional<BeamOptions>& beams);

}  // namespace tessera::infer
