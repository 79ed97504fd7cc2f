// What a Hugging Face folder says about how its texts are made, as far as it decides tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera::convert {

struct GenerationConfig {
  std::optional<int64_t> forced_begin;  // "forced_bos_token_id": the first token of every answer
  std::optional<int64_t> forced_end;    // "forced_eos_token_id": the last one at the longest length
};

/// generation_config.json, or where there is none config.json; nothing of a folder without either.
/// Throws Error(file) for what is no id below `vocab`.
GenerationConfig read_generation_config(const std::filesystem::path& folder, int64_t vocab);

}  // namespace tessera::convert
