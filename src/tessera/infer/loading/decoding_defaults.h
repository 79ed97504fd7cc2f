// Default decoding options: those of the model (generation_config.json, general.sampling.* of a
// GGUF file), otherwise the program's.
#pragma once

#include <functional>
#include <string_view>

#include "tessera/convert/generation_config.h"
#include "tessera/infer/engine/request.h"
#include "tessera/infer/sampling/decoding_fields.h"

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

/// More new tokens than any context holds.
inline constexpr int64_t kAnyLength = int64_t{1} << 40;

/// True for an option that the user sets, by name (decoding_fields.h).
using IsGiven = std::function<bool(std::string_view name)>;

/// Sets the options that the user leaves open to the model's: sampling numbers (filters only if
/// tokens are sampled), the order of samplers, limits of length and stop strings. Biases, banned
/// sequences and suppressed first tokens of the model are added to the user's.
void take_defaults(const DecodingDefaults& defaults,
                   const IsGiven& given,
                   DecodingOptions& decoding);

/// Sets the model's forced tokens, unless there is a constraint, which excludes them: for an
/// encoder-decoder the first token, where the user forces none, and if the text may end before its
/// limit (`ends`), the last one, which is an end of text too.
void take_forced_tokens(const DecodingDefaults& defaults,
                        bool encoder_decoder,
                        bool ends,
                        DecodingOptions& decoding);

/// For people: "greedy", "temperature 0.7, min-p 0.05, seed 3" or "beam search with 4 beams", then
/// penalties and limits that are set.
std::string describe(const DecodingOptions& decoding, const std::optional<BeamOptions>& beams);

}  // namespace tessera::infer
