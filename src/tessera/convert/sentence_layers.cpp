#include "tessera/convert/sentence_layers.h"

#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/spec/json.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr const char* kVector = "sentence_embedding";  // what a module reads and writes

constexpr std::pair<const char*, SentenceActivation> kActivations[] = {
    {"Identity", SentenceActivation::identity}, {"Tanh", SentenceActivation::tanh},
    {"ReLU", SentenceActivation::relu},         {"GELU", SentenceActivation::gelu},
    {"SiLU", SentenceActivation::silu},         {"Sigmoid", SentenceActivation::sigmoid}};

Json config_in(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  Json config = spec::read_json_file(file);
  if (!config.is_object())
    fail(ErrorKind::file, file.string(), "found {}; expected an object", spec::kind_of(config));
  return config;
}

int64_t width_at(const Json& config, const char* key, const std::string& where) {
  const Json value = config.value(key, Json());
  if (!value.is_number_integer() || value.get<int64_t>() < 1)
    fail(ErrorKind::file, where, "{} = {}; expected a positive integer", key,
         value.dump().substr(0, 40));
  return value.get<int64_t>();
}

bool module_flag(const Json& config, const char* key, bool otherwise, const std::string& where) {
  const Json value = config.value(key, Json(otherwise));
  if (!value.is_boolean())
    fail(ErrorKind::file, where, "{} = {}; expected true or false", key,
         value.dump().substr(0, 40));
  return value.get<bool>();
}

void check_name(const Json& config, const char* key, const std::string& where) {
  const Json value = config.value(key, Json());
  if (!value.is_null() && value != Json(kVector))
    fail(ErrorKind::file, where, "{} = {} is not supported; expected \"{}\"", key,
         value.dump().substr(0, 100), kVector);
}

/// A class of torch.nn, such as "torch.nn.modules.activation.Tanh".
SentenceActivation activation_of(const Json& config, const std::string& where) {
  const Json value = config.value("activation_function", Json("torch.nn.modules.activation.Tanh"));
  const std::string name = value.is_string() ? value.get<std::string>() : value.dump();
  if (name.starts_with("torch.nn."))
    for (const auto& [known, activation] : kActivations)
      if (name.substr(name.rfind('.') + 1) == known) return activation;
  std::string names;
  for (const auto& [known, activation] : kActivations)
    names += (names.empty() ? "" : ", ") + std::string(known);
  fail(ErrorKind::file, where,
       "activation_function = \"{}\" is not supported; expected a class of torch.nn: {}",
       name.substr(0, 100), names);
}

format::TensorFile tensors_in(const fs::path& folder) {
  return format::open_tensor_folder(folder);
}

std::vector<float> values_of(const format::TensorFile& file, const char* name, const Shape& shape) {
  const TensorView tensor = as_float32(file.at(name));
  if (tensor.shape != shape)
    fail(ErrorKind::file, file.file(), "tensor \"{}\" has shape {}; expected {}", name,
         format::shape_text(tensor.shape), format::shape_text(shape));
  std::vector<float> values(static_cast<size_t>(format::element_count(shape)));
  std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace

SentenceLayer read_dense(const fs::path& folder) {
  const std::string where = (folder / "config.json").string();
  const Json config = config_in(folder);
  check_name(config, "module_input_name", where);
  check_name(config, "module_output_name", where);
  SentenceLayer layer{.kind = SentenceLayer::Kind::dense, .where = where};
  layer.in = width_at(config, "in_features", where);
  layer.out = width_at(config, "out_features", where);
  layer.activation = activation_of(config, where);
  const format::TensorFile tensors = tensors_in(folder);
  layer.weight = values_of(tensors, "linear.weight", {layer.out, layer.in});
  if (module_flag(config, "bias", true, where))
    layer.bias = values_of(tensors, "linear.bias", {layer.out});
  if (module_flag(config, "use_residual", false, where)) {
    layer.adds_input = layer.in == layer.out;
    if (!layer.adds_input)
      layer.residual = values_of(tensors, "residual.weight", {layer.out, layer.in});
  }
  return layer;
}

SentenceLayer read_normalize(const fs::path& folder) {
  const std::string where = (folder / "config.json").string();
  if (fs::is_regular_file(where)) {  // since sentence-transformers 5.4
    const Json config = config_in(folder);
    check_name(config, "module_input_name", where);
    check_name(config, "module_output_name", where);
  }
  return {.kind = SentenceLayer::Kind::normalize, .where = where};
}

SentenceLayer read_layer_norm(const fs::path& folder) {
  const std::string where = (folder / "config.json").string();
  SentenceLayer layer{.kind = SentenceLayer::Kind::layer_norm, .where = where};
  layer.in = layer.out = width_at(config_in(folder), "dimension", where);
  const format::TensorFile tensors = tensors_in(folder);
  layer.weight = values_of(tensors, "norm.weight", {layer.in});
  layer.bias = values_of(tensors, "norm.bias", {layer.in});
  return layer;
}

}  // namespace tessera::convert
