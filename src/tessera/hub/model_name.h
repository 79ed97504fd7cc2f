// Names of models as people write them: `org/name[@revision][:file or quantization]`.
//
//   Qwen/Qwen2.5-0.5B-Instruct            revision main
//   org/name@v1.0                         a branch, a tag, or a commit
//   org/name-GGUF:Q4_K_M                  one of several GGUF files by its quantization
//   org/name:onnx/config.json             a file or folder of the repository
//   gpt2                                  repositories of old have no organization
//   https://huggingface.co/org/name       the address of a page, as of a branch or a file
//
// Rules of names: huggingface_hub's validate_repo_id.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::hub {

inline constexpr const char* kMainRevision = "main";

struct ModelName {
  std::string repo;  // "org/name", or "name"
  std::string revision = kMainRevision;
  std::string selection = {};  // the text after the colon; "" = none

  /// As it is written, without a revision that is main.
  std::string text() const;
  /// The folder of the cache: "models--org--name".
  std::string folder() const;
};

/// Nothing where the text is no such name.
std::optional<ModelName> parse_model_name(std::string_view text);

/// Whether it is "org/name" or "name": letters, digits, '-', '_', '.', at most 96 each.
bool is_repo_id(std::string_view text);
/// The repository of a folder of the cache, "models--org--name"; nothing of other folders.
std::optional<std::string> repo_of_folder(std::string_view folder);

/// Whether a path of a server or a user stays below the folder that it is relative to: not
/// absolute, no empty part, no "." or "..", no control characters and no backslash, parts of 255
/// bytes at most, valid UTF-8.
bool is_safe_path(std::string_view path);
/// The same of branches, tags and commits.
bool is_revision(std::string_view text);
/// 40 hexadecimal digits.
bool is_commit(std::string_view text);

}  // namespace tessera::hub
