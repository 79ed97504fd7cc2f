// compressed-tensors and fp8: matrices [out, in].
#include "tessera/convert/quantized_matrix.h"

#include <algorithm>

namespace tessera::convert {

using spec::Json;

namespace {

/// A kind of weights that a config declares.
struct Declared {
  int bits = 8;
  bool floats = false;
  std::optional<int64_t> group;
  std::optional<std::pair<int64_t, int64_t>> block;
};

/// How scales of this shape lie over a matrix.
struct Scales {
  int64_t per_rows = 1, group = 1;  // rows and columns of one
  int64_t groups = 1;               // in a row of the tensor

  int64_t index(int64_t row, int64_t g) const { return row / per_rows * groups + g; }
};

Scales scales_over(const RawTensor& scale,
                   int64_t rows,
                   int64_t columns,
                   const std::vector<Declared>& declared,
                   const std::string& file) {
  std::vector<int64_t> shape = scale.shape;
  if (shape.empty() || shape == std::vector<int64_t>{1}) return {rows, columns, 1};
  if (shape == std::vector{rows} || shape == std::vector<int64_t>{rows, 1}) return {1, columns, 1};
  for (const Declared& d : declared) {
    if (d.block &&
        shape == std::vector{parts_of(rows, d.block->first), parts_of(columns, d.block->second)})
      return {d.block->first, d.block->second, shape[1]};
    if (d.group && shape == std::vector{rows, parts_of(columns, *d.group)})
      return {1, *d.group, shape[1]};
  }
  fail(ErrorKind::file, file,
       "tensor {} has shape {}; the config says no such groups of a matrix {}",
       format::in_quotes(scale.name), format::shape_text(shape),
       format::shape_text(std::vector{rows, columns}));
}

/// Sets a matrix's scales from a tensor.
void set_scales(QuantizedMatrix& m,
                const RawTensor& scale,
                const std::vector<Declared>& declared,
                const RawTensors& tensors) {
  tensors.expect_type(scale, {DType::f16, DType::bf16, DType::f32, DType::f64});
  const Scales over = scales_over(scale, m.rows, m.columns, declared, tensors.file());
  m.group = over.group;
  m.scale = [scale, over](int64_t r, int64_t g) { return scale.number(over.index(r, g)); };
}

/// Bytes as they are, or signed ones as codes from 0 to 255.
void set_bytes(QuantizedMatrix& m, const RawTensor& bytes, bool is_signed) {
  const int64_t columns = m.columns;
  const uint8_t flip = is_signed ? 128 : 0;
  m.codes = [bytes, columns, flip](int64_t begin, int64_t end, uint8_t* to) {
    for (int64_t i = begin * columns; i < end * columns; ++i) *to++ = bytes.at<uint8_t>(i) ^ flip;
  };
}

/// "F8_E4M3" in module.weight, next to the scales that it is multiplied by.
QuantizedMatrix e4m3_matrix(const RawTensor& weight,
                            const std::string& scale_name,
                            const std::vector<Declared>& declared,
                            RawTensors& tensors) {
  const RawTensor& scale = tensors.at(scale_name, weight.name);
  tensors.expect_matrix(weight);
  QuantizedMatrix m;
  m.name = weight.name;
  m.bits = 8;
  m.e4m3 = true;
  m.rows = weight.shape[0];
  m.columns = weight.shape[1];
  set_scales(m, scale, declared, tensors);
  set_bytes(m, weight, /*is_signed=*/false);
  return m;
}

constexpr const char* kOfActivations[] = {"input_scale", "input_zero_point", "output_scale",
                                          "k_scale",     "v_scale",          "q_scale"};

/// Numbers by which programs round what weights meet: not weights.
void pass_over_activations(RawTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, raw] : tensors.all())
    for (const std::string suffix : kOfActivations)
      if (name.ends_with("." + suffix)) names.push_back(name);
  for (const std::string& name : names) tensors.find(name);
}

constexpr const char* kActivations =
    "activation quantization of this checkpoint is ignored; its weights are quantized, activations "
    "keep their precision";

/// The kinds of weights of config_groups, and whether activations are rounded.
std::vector<Declared> declared_in(const QuantizerConfig& settings, bool& activations) {
  const Json* groups = settings.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty())
    fail(ErrorKind::file, settings.where(), "config_groups is {}; expected groups of modules",
         groups == nullptr ? "missing" : "without any");
  std::vector<Declared> declared;
  for (const auto& [name, json] : groups->items()) {
    const QuantizerConfig group(
        json, fmt::format("{}.config_groups.{}", settings.where(), format::printable(name, 40)));
    activations = activations || group.find("input_activations") != nullptr;
    const Json* weights = group.find("weights");
    if (weights == nullptr) continue;
    const QuantizerConfig of(*weights, group.where() + ".weights");
    Declared d;
    d.bits = bits_of(of, "num_bits");
    const std::string type = of.text("type", "int");
    d.floats = type == "float";
    if ((type != "int" && type != "float") || (d.floats && d.bits != 8))
      of.wrong("type", *of.find("type"), "\"int\", or \"float\" of 8 bits");
    d.block = of.sizes("block_structure");
    if (const int64_t size = of.whole("group_size", -1); size >= 1)
      d.group = size;
    else if (size != -1)
      of.wrong("group_size", *of.find("group_size"), "a number of columns");
    declared.push_back(d);
  }
  if (declared.empty())
    fail(ErrorKind::file, settings.where(), "no group has weights; expected those of modules");
  return declared;
}

/// module.weight_packed, .weight_scale, .weight_shape, and what else there may be.
QuantizedMatrix words_matrix(const std::string& module,
                             const std::vector<Declared>& declared,
                             RawTensors& tensors) {
  const std::string name = module + ".weight_packed";
  const RawTensor& words = *tensors.find(name);
  tensors.expect_type(words, {DType::i32});
  tensors.expect_matrix(words);
  const RawTensor& shape = tensors.at(module + ".weight_shape", name);
  tensors.expect_type(shape, {DType::i64, DType::i32});
  tensors.expect_shape(shape, {2}, "a matrix");
  const auto size = [&](int64_t axis) {
    return shape.dtype == DType::i64 ? shape.at<int64_t>(axis) : int64_t{shape.at<int32_t>(axis)};
  };
  QuantizedMatrix m;
  m.name = module + ".weight";
  m.rows = size(0);
  m.columns = size(1);
  for (const Declared& d : declared)
    if (!d.floats && m.rows == words.shape[0] && m.columns >= 1 &&
        parts_of(m.columns, 32 / d.bits) == words.shape[1])
      m.bits = d.bits;
  if (m.bits == 0)
    fail(ErrorKind::file, tensors.file(),
         "tensor {} has shape {}; {} and the bits of the config say otherwise",
         format::in_quotes(name), format::shape_text(words.shape),
         format::shape_text(std::vector{m.rows, m.columns}));
  set_scales(m, tensors.at(module + ".weight_scale", name), declared, tensors);
  const int bits = m.bits;
  const int64_t in_word = 32 / bits, in_row = words.shape[1], columns = m.columns;
  const uint32_t mask = (1u << bits) - 1;
  m.codes = [=](int64_t begin, int64_t end, uint8_t* to) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < columns; ++c)
        *to++ = static_cast<uint8_t>(
            words.at<uint32_t>(r * in_row + c / in_word) >> (bits * (c % in_word)) & mask);
  };
  const int64_t groups = m.group_count();
  if (const RawTensor* zeros = tensors.find(module + ".weight_zero_point")) {
    tensors.expect_type(*zeros, {DType::i32});
    tensors.expect_shape(*zeros, {parts_of(m.rows, in_word), groups}, "the scales' shape");
    m.zero = [zeros = *zeros, groups, bits, in_word, mask](int64_t r, int64_t g) {
      return static_cast<int32_t>(
          zeros.at<uint32_t>(r / in_word * groups + g) >> (bits * (r % in_word)) & mask);
    };
  }
  if (const RawTensor* g_idx = tensors.find(module + ".weight_g_idx")) {
    tensors.expect_type(*g_idx, {DType::i32, DType::i64});
    tensors.expect_shape(*g_idx, {m.columns}, "the packed weight");
    if (g_idx->dtype == DType::i64)
      fail(ErrorKind::file, tensors.file(), "tensor {} has type i64; expected i32",
           format::in_quotes(g_idx->name));
    m.groups = order_of(*g_idx, m, tensors.file());
  }
  return m;
}

/// module.weight of signed bytes.
QuantizedMatrix bytes_matrix(const RawTensor& weight,
                             const std::vector<Declared>& declared,
                             RawTensors& tensors) {
  tensors.expect_matrix(weight);
  QuantizedMatrix m;
  m.name = weight.name;
  m.bits = 8;
  m.rows = weight.shape[0];
  m.columns = weight.shape[1];
  const RawTensor& scale = tensors.at(weight.name + "_scale", weight.name);
  set_scales(m, scale, declared, tensors);
  set_bytes(m, weight, /*is_signed=*/true);
  if (const RawTensor* zeros = tensors.find(weight.name + "_zero_point")) {
    tensors.expect_type(*zeros, {DType::i8});
    tensors.expect_shape(*zeros, scale.shape, "the scales' shape");
    const Scales over = scales_over(scale, m.rows, m.columns, declared, tensors.file());
    m.zero = [zeros = *zeros, over](int64_t r, int64_t g) {
      return zeros.at<int8_t>(over.index(r, g)) + 128;
    };
  }
  return m;
}

}  // namespace

std::vector<QuantizedMatrix> fp8_matrices(const QuantizerConfig& settings,
                                          RawTensors& tensors,
                                          std::vector<std::string>& remarks) {
  settings.expect({"fmt"}, {"e4m3"});
  settings.text("activation_scheme", "dynamic");
  std::vector<Declared> declared(1);
  declared[0].block = settings.sizes("weight_block_size");
  std::vector<QuantizedMatrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (raw.type != kE4m3 || !name.ends_with(".weight")) continue;
    const RawTensor& weight = *tensors.find(name);
    const bool plain = tensors.all().contains(name + "_scale");
    matrices.push_back(
        e4m3_matrix(weight, name + (plain ? "_scale" : "_scale_inv"), declared, tensors));
  }
  pass_over_activations(tensors);
  remarks.push_back(kActivations);
  return matrices;
}

std::vector<QuantizedMatrix> compressed_matrices(const QuantizerConfig& settings,
                                                 RawTensors& tensors,
                                                 std::vector<std::string>& remarks) {
  const std::string form = settings.text("format", "");
  const std::string_view known[] = {"pack-quantized", "int-quantized", "float-quantized",
                                    "naive-quantized", "mixed-precision"};
  if (std::find(std::begin(known), std::end(known), form) == std::end(known))
    fail(ErrorKind::file, settings.where(), "format = {} is not supported; expected {}",
         format::in_quotes(form), fmt::join(known, ", "));
  if (const Json* sparsity = settings.find("sparsity_config");
      sparsity != nullptr && sparsity->is_object() && !sparsity->empty() &&
      sparsity->value("format", Json("dense")) != Json("dense"))
    settings.wrong("sparsity_config", *sparsity, "weights that are dense");
  if (const Json* transform = settings.find("transform_config");
      transform != nullptr && !transform->empty())
    settings.wrong("transform_config", *transform, "none: turned weights need turned activations");
  bool activations = settings.find("kv_cache_scheme") != nullptr;
  const std::vector<Declared> declared = declared_in(settings, activations);
  if (activations) remarks.push_back(kActivations);
  const auto declares = [&](bool floats) {
    return std::any_of(declared.begin(), declared.end(),
                       [&](const Declared& d) { return d.floats == floats && d.bits == 8; });
  };
  std::vector<QuantizedMatrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (name.ends_with(".weight_packed")) {
      matrices.push_back(words_matrix(module_of(name, ".weight_packed"), declared, tensors));
      continue;
    }
    const bool floats = raw.type == kE4m3;
    if (!name.ends_with(".weight") || (!floats && raw.dtype != DType::i8)) continue;
    if (!declares(floats))
      fail(ErrorKind::file, tensors.file(),
           "tensor {} has type {}; the config says no weights of it", format::in_quotes(name),
           raw.type);
    const RawTensor& weight = *tensors.find(name);
    matrices.push_back(floats ? e4m3_matrix(weight, name + "_scale", declared, tensors)
                              : bytes_matrix(weight, declared, tensors));
  }
  pass_over_activations(tensors);
  return matrices;
}

}  // namespace tessera::convert
