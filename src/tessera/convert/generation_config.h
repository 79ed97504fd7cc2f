// Generation defaults that come with a model: Hugging Face's generation_config.json (or config.json
// of older folders), and the general.sampling.* keys of a GGUF file.
//
// Every key of transformers' GenerationConfig (5.23) is in one table, generation_keys(): it is
// read, has no effect on text, or is not supported; the last are named in `unsupported` where a
// file sets them to something else than their neutral value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/format/gguf.h"

namespace tessera::convert {

/// When a beam search ends: once it has as many finished hypotheses as beams (always); where no
/// running hypothesis is better at its present length (heuristic); where none can become better at
/// any length (never).
enum class EarlyStopping { always, heuristic, never };

/// A number of the program's sampling options that a file may set
/// (infer/sampling/decoding_fields.h).
struct NumberKey {
  const char* field;   // the option
  const char* key;     // in the file
  double least, most;  // accepted; values below `valid_least` become it
  double valid_least = 0;
  bool whole = false;
  bool draws = false;  // of sampling: without effect where do_sample is not true
};

struct GenerationConfig {
  std::optional<int64_t> forced_begin = {};  // "forced_bos_token_id": the first token of an answer
  std::optional<int64_t> forced_end = {};    // "forced_eos_token_id": the last, at full length
  /// "eos_token_id": all that end a text. Ids beyond the vocabulary, which a model never generates,
  /// are left out, here and in the lists of suppressed tokens.
  std::vector<int64_t> ends = {};
  std::optional<int64_t> start = {};  // "decoder_start_token_id"
  /// Whether tokens are drawn; false or absent means greedy decoding or beam search to
  /// transformers.
  std::optional<bool> do_sample = {};
  /// Sampling options by name.
  std::map<std::string, double> sampling = {};
  bool sets_draws = false;                 // one of them has NumberKey::draws
  std::vector<std::string> samplers = {};  // their order, of a GGUF file
  /// "max_length" and "min_length" count the prompt (of an encoder-decoder, the start token).
  std::optional<int64_t> max_new_tokens = {}, max_length = {}, min_new_tokens = {}, min_length = {};
  std::vector<std::string> stop_strings = {};
  std::vector<int64_t> suppressed = {}, suppressed_at_begin = {};
  /// "sequence_bias", and "bad_words_ids" at -infinity: added to the last token of a sequence where
  /// the others precede. A bias of +infinity is 1e30.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias = {};
  std::optional<int64_t> beams = {};
  std::optional<double> length_penalty = {};
  std::optional<EarlyStopping> early_stopping = {};
  bool renormalize = false;  // a search's scores, after they were changed
  /// What has no effect here, as "guidance_scale = 3", and unknown keys with the nearest name.
  std::vector<std::string> unsupported = {};
  std::string source = {};  // for messages; empty where there is no such file

  /// Whether the makers say how tokens are drawn, rather than only where a text ends.
  bool samples() const;
};

/// generation_config.json, or where there is none config.json; nothing of a folder without either.
/// `numbers`: the sampling options to read. Throws Error(file) for a value of another type or out
/// of its range.
GenerationConfig read_generation_config(const std::filesystem::path& folder,
                                        int64_t vocab,
                                        std::span<const NumberKey> numbers);

/// Copies generation_config.json from one model's folder to another's that has none.
void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to);

/// general.sampling.* of a GGUF file. A temperature above 0 means that tokens are drawn.
GenerationConfig read_generation_config(const format::GgufFile& file,
                                        std::span<const NumberKey> numbers);

/// What becomes of a key of transformers' GenerationConfig.
enum class KeyUse { read, unsupported, without_effect };
struct GenerationKey {
  const char* name;
  KeyUse use;
};
std::span<const GenerationKey> generation_keys();

}  // namespace tessera::convert
