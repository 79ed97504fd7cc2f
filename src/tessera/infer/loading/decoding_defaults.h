// Default decoding options: those of the model (generation_config.json, general.sampling.* of a
// GGUF file), otherwise the program's.
#pragma once

#include "tessera/convert/generation_config.h"
#include "tessera/infer/engine/request.h"

namespace tessera::infer {

/// The kind of text. If the model does not set sampling, a continuation is greedy, as in
/// transformers. Answers in a conversation use temperature 0.7 and min_p 0.05, because small models
/// repeat themselves otherwise. `temperature` or a filter without `do_sample` means sampling in a
/// conversation only, as servers take it.
enum class TextKind { continuation, conversation };

struct DecodingDefaults {
  SamplingOptions sampling;               // with biases and banned sequences
  std::optional<BeamOptions> beams = {};  // beam search instead
  std::optional<int64_t> max_new_tokens = {};
  int64_t max_length = 0, min_new_tokens = 0, min_length = 0;  // see DecodingOptions
  std::vector<std::string> stop_strings = {};
  std::vector<int64_t> begin_suppress = {};
  std::optional<int64_t> forced_begin = {}, forced_end = {};
  std::vector<std::string> unsupported =
      {};                   // keys of the model's settings without effect, with values
  std::string source = {};  // file of these settings; empty: the model has none
};

DecodingDefaults decoding_defaults(const convert::GenerationConfig& config, TextKind kind);

/// Copies settings that are neither sampling numbers nor lengths: biases, banned sequences,
/// suppressed first tokens.
void take_bans(const DecodingDefaults& defaults, DecodingOptions& decoding);

/// More new tokens than any context holds.
inline constexpr int64_t kAnyLength = int64_t{1} << 40;
/// Limits that a user has set.
struct GivenLimits {
  bool max_new_tokens = false, min_new_tokens = false, stop = false;
};
/// Those that the user leaves open become the makers'.
void take_limits(const DecodingDefaults& defaults,
                 const GivenLimits& given,
                 DecodingOptions& decoding);

/// For people: "greedy", "temperature 0.7, min-p 0.05, seed 3" or "beam search with 4 beams", then
/// penalties and limits that are set.
std::string describe(const DecodingOptions& decoding, const std::optional<BeamOptions>& beams);

}  // namespace tessera::infer
