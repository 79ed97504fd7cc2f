#include "tessera/convert/propose_evidence.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/convert/tensor_roles.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

double mean_of_norms(const format::TensorFile& file) {
  double sum = 0;
  int64_t count = 0;
  for (const format::TensorView& tensor : file.tensors()) {
    std::string name = tensor.name;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (tensor.shape.size() != 1 || !name.ends_with(".weight") ||
        (name.find("norm") == std::string::npos && name.find("ln_") == std::string::npos))
      continue;
    const format::TensorView floats = as_float32(tensor);
    for (size_t i = 0; i < floats.data.size(); i += sizeof(float)) {
      float weight;
      std::memcpy(&weight, floats.data.data() + i, sizeof(float));
      sum += static_cast<double>(weight);
      ++count;
    }
  }
  return count == 0 ? 1 : sum / static_cast<double>(count);
}

/// Keys of an object and of those in it, without the names of labels.
size_t keys_in(const Json& object) {
  size_t keys = object.size();
  for (const auto& [key, value] : object.items())
    if (value.is_object() && key != "id2label" && key != "label2id") keys += keys_in(value);
  return keys;
}

}  // namespace

Evidence::Evidence(const fs::path& folder) : path_((folder / "config.json").string()) {
  if (!fs::is_regular_file(folder / "config.json"))
    fail(ErrorKind::file, folder.string(),
         "there is no config.json; expected a Hugging Face folder");
  config_ = parse_hf_config(read_text_file(folder / "config.json", kMaxConfigBytes), path_);
  if (const size_t keys = keys_in(config_); keys > kMaxConfigKeys)
    fail(ErrorKind::file, path_, "{} keys; expected at most {}", keys, kMaxConfigKeys);
  for (const char* key : {"quantization_config", "compression_config"})
    if (config_.contains(key))
      fail(ErrorKind::file, path_,
           "\"{}\": packed weights hide shapes; expected the folder before quantization", key);
  const Json type = config_.value("model_type", Json());
  if (!type.is_string())
    fail(ErrorKind::file, path_, "\"model_type\" is {}; expected the name of the type",
         shown(type));
  type_ = type.get<std::string>();
  tensors_ = format::open_tensor_folder(folder);
  std::map<std::string, size_t> places;
  for (const format::TensorView& tensor : tensors_.tensors()) {
    const std::string pattern = numbered(tensor.name).pattern;
    const auto [at, added] = places.try_emplace(pattern, patterns_.size());
    if (added) patterns_.push_back({pattern, role_of(pattern), tensor.shape, 0});
    ++patterns_[at->second].count;
  }
  norm_centre_ = mean_of_norms(tensors_);
}

const format::TensorView* Evidence::find(const std::string& name) const {
  for (const format::UnsupportedTensor& tensor : tensors_.unsupported())
    if (tensor.name == name) return nullptr;
  return tensors_.find(name);
}

Json Evidence::at(std::string_view path) const {
  const Json* at = &config_;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (!at->is_object()) return nullptr;
    const auto found = at->find(path.substr(begin, end - begin));
    if (found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return *at;
}

std::optional<std::pair<std::string, double>> Evidence::number(
    std::initializer_list<std::string_view> paths) const {
  for (const std::string_view path : paths)
    if (const Json value = at(path); value.is_number())
      return std::pair(std::string(path), value.get<double>());
  return {};
}

const FilePattern* Evidence::in_layers(std::string_view role, std::string_view kind) const {
  for (const FilePattern& pattern : patterns_)
    if (pattern.role == role &&
        std::count(pattern.pattern.begin(), pattern.pattern.end(), '*') == 1 &&
        pattern.pattern.ends_with("." + std::string(kind)))
      return &pattern;
  return nullptr;
}

int64_t Evidence::size_of(std::string_view value) const {
  const auto embed = std::find_if(patterns_.begin(), patterns_.end(), [](const FilePattern& one) {
    return one.role == "embed" && one.count == 1 && one.shape.size() == 2;
  });
  if (embed == patterns_.end()) return 0;
  if (value == "vocab") return embed->shape[0];
  const FilePattern* norm = in_layers("norm1");
  // where the embedding is narrower than the layers, norms show their width
  const int64_t d_model =
      norm != nullptr && norm->shape.size() == 1 ? norm->shape[0] : embed->shape[1];
  if (value == "d_model") return d_model;
  const FilePattern* up = in_layers("up");
  if (up == nullptr || up->shape.size() != 2) return 0;
  if (value == "n_layers") return static_cast<int64_t>(up->count);
  if (value == "d_hidden") return up->shape[0] == d_model ? up->shape[1] : up->shape[0];
  return 0;
}

bool Evidence::has_windows() const {
  for (const auto& [key, value] : config_.items())
    if (!value.is_null() && (key.find("sliding") != std::string::npos ||
                             key.find("window") != std::string::npos || key == "layer_types"))
      return true;
  return false;
}

}  // namespace tessera::convert
