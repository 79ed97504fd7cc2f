// What a checkpoint of an unknown type shows: the keys of its config, the names and shapes of its
// tensors, and the mean of the weights of its norms. Torch-free.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/format/tensor_folder.h"
#include "tessera/spec/json.h"

namespace tessera::convert {

using spec::Json;

inline constexpr const char* kHf = "hf";
inline constexpr size_t kMaxConfigBytes = size_t{16} << 20;
inline constexpr size_t kMaxConfigKeys = 4096;

/// Tensors of one pattern of the file: one of each layer, or of the whole model.
struct FilePattern {
  std::string pattern;  // "model.layers.*.mlp.up_proj.weight"
  std::string role;     // tensor_roles.h
  std::vector<int64_t> shape;
  size_t count = 0;
};

class Evidence {
 public:
  /// Throws Error(file) for a folder without config.json, a type or an unquantized checkpoint.
  explicit Evidence(const std::filesystem::path& folder);

  const std::string& config_path() const { return path_; }
  const std::string& type() const { return type_; }
  const Json& config() const { return config_; }
  const format::TensorFile& tensors() const { return tensors_; }
  /// Null for a name that the file lacks, or a tensor of an unsupported type.
  const format::TensorView* find(const std::string& name) const;
  /// The value of a dotted path of the config; null = none.
  Json at(std::string_view path) const;
  /// The first of the paths whose value is a number.
  std::optional<std::pair<std::string, double>> number(
      std::initializer_list<std::string_view> paths) const;

  const std::vector<FilePattern>& patterns() const { return patterns_; }
  /// The first pattern of a role of which each layer has one, with this last word; null = none.
  const FilePattern* in_layers(std::string_view role, std::string_view kind = "weight") const;
  /// The number that tensors show for a value of families: "d_model", "d_hidden", "vocab",
  /// "n_layers"; 0 = they do not.
  int64_t size_of(std::string_view value) const;
  /// Whether a key that is not null is of windows.
  bool has_windows() const;
  /// The mean of the weights of norms; 1 if there are none.
  double norm_centre() const { return norm_centre_; }

 private:
  std::string path_, type_;
  Json config_;
  format::TensorFile tensors_;
  std::vector<FilePattern> patterns_;
  double norm_centre_ = 1;
};

}  // namespace tessera::convert
