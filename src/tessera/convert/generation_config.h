// What a Hugging Face folder says about how its texts are made, as far as it decides tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace tessera::convert {

struct GenerationConfig {
  std::optional<int64_t> forced_begin;  // "forced_bos_token_id": the first token of every answer
  std::optional<int64_t> forced_end;    // "forced_eos_token_id": the last one at the longest length
  /// "eos_token_id": all that end a text. Ids beyond the vocabulary, which a model never says, are
  /// left out.
  std::vector<int64_t> ends = {};
  /// How its makers sample, where they say so; "do_sample" false or absent means the most likely
  /// token to transformers.
  std::optional<bool> do_sample = {};
  std::optional<double> temperature = {}, top_p = {}, min_p = {}, typical_p = {},
                        repetition_penalty = {};
  std::optional<int64_t> top_k = {};
};

/// generation_config.json, or where there is none config.json; nothing of a folder without either.
/// Throws Error(file) for what is no id below `vocab`, or a setting out of its range.
GenerationConfig read_generation_config(const std::filesystem::path& folder, int64_t vocab);

}  // namespace tessera::convert
