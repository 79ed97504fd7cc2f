// The GGUF models among the files of a repository: one for each quantization, whole or in parts
// (NAME-00001-of-00003.gguf). Projectors of images (mmproj) and importance matrices are none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::hub {

struct GgufModel {
  std::vector<std::string> parts;  // paths in the order of their numbers; one where it is whole
  size_t expected_parts = 1;       // by the names
  std::string quantization;        // "Q4_K_M" as the name ends; "" where it has none

  /// What chooses it: the quantization, else the first file's path.
  std::string choice() const { return quantization.empty() ? parts.front() : quantization; }
};

/// Sorted by path; one with a part that is missing is among them.
std::vector<GgufModel> gguf_models(const std::vector<std::string>& paths);

/// Those that a quantization means: "Q4_K_M" or "q4_k_m", at the end of the file's name or of its
/// folder's. Where one ends in exactly this, others that only end in it (UD-Q4_K_M) are left out.
std::vector<GgufModel> of_quantization(const std::vector<GgufModel>& models,
                                       std::string_view quantization);

/// "org/name:Q4_K_M, org/name:Q8_0"; models of one quantization by their file.
std::string choices(const std::string& repo, const std::vector<GgufModel>& models);

}  // namespace tessera::hub
