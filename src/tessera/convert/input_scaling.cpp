#include "tessera/convert/input_scaling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/format/file_source.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/kernels/weights/quantize.h"
#include "tessera/spec/json.h"

namespace tessera::convert {

// made by the build from scaled_inputs.json
extern const char* const kScaledInputsJson;

namespace {

constexpr int kAlphas = 20;
constexpr int64_t kRowsTried = 512;  // of a matrix at most, evenly over it

/// Architectures of GGUF files whose layers have the groups below, and no other matrix.
const std::vector<std::string>& known_architectures() {
  static const auto names =
      spec::parse_json(kScaledInputsJson, "scaled_inputs.json").get<std::vector<std::string>>();
  return names;
}

/// Matrices that read the same inputs, and who gives these.
struct Group {
  std::vector<size_t> readers;    // columns are multiplied
  size_t source = 0;              // a vector, or rows of a matrix, that are divided
  std::optional<size_t> bias;     // in addition to the source, likewise
  size_t products = 0;            // the reader whose inputs are looked at
  int64_t heads = 1, shared = 1;  // of a matrix of values: its heads, each read this many times
};

class Layers {
 public:
  explicit Layers(const GgufModel& model) : model_(model) {
    for (size_t i = 0; i < model.tensors.size(); ++i) {
      const std::string& name = model.tensors[i].name;
      index_[name] = i;
      if (name.starts_with("blk.")) layers_.insert(name.substr(0, name.find('.', 4)) + ".");
    }
  }

  std::vector<Group> groups(std::vector<std::string>& notes) const {
    std::vector<Group> out;
    for (const std::string& at : layers_) {
      const std::vector<std::string> of_attention = {"attn_q", "attn_k", "attn_v", "attn_qkv"};
      std::vector<std::string> of_ffn = {"ffn_gate_inp",  "ffn_gate",          "ffn_up",
                                         "ffn_gate_exps", "ffn_up_exps",       "ffn_gate_shexp",
                                         "ffn_up_shexp",  "ffn_gate_inp_shexp"};
      for (int e = 0; find(fmt::format("{}ffn_gate.{}.weight", at, e)); ++e)
        for (const char* part : {"ffn_gate", "ffn_up"})
          of_ffn.push_back(fmt::format("{}.{}", part, e));
      auto behind_norm = of_attention;
      const bool parallel = !find(at + "ffn_norm.weight");
      if (parallel) behind_norm.insert(behind_norm.end(), of_ffn.begin(), of_ffn.end());
      add(at, "attn_norm", behind_norm, out);
      if (!parallel) add(at, "ffn_norm", of_ffn, out);
      add_values(at, out, notes);
      // act(gate) up: the second half gives each input separately
      if (find(at + "ffn_gate.weight"))
        add(at, "ffn_up", {"ffn_down"}, out);
      else if (find(at + "ffn_down.weight"))
        note(at + "ffn_down.weight", notes);
      for (const char* down : {"ffn_down_exps.weight", "ffn_down.0.weight"})
        if (find(at + down)) note(at + down, notes);
    }
    return out;
  }

 private:
  std::optional<size_t> find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  }
  const TensorView& tensor(size_t i) const { return model_.tensors[i]; }

  static void note(const std::string& name, std::vector<std::string>& notes) {
    notes.push_back(name + ": nothing before it can take the scales of its inputs");
  }

  std::optional<Group> group(const std::string& at,
                             const char* source,
                             const std::vector<std::string>& readers) const {
    Group out;
    const auto from = find(at + source + ".weight");
    if (!from) return std::nullopt;
    out.source = *from;
    out.bias = find(at + source + ".bias");
    for (const std::string& reader : readers)
      if (const auto found = find(at + reader + ".weight")) out.readers.push_back(*found);
    if (out.readers.empty()) return std::nullopt;
    // experts see some of the inputs; what all tokens go through comes first
    out.products = out.readers.front();
    return out;
  }

  void add(const std::string& at,
           const char* source,
           const std::vector<std::string>& readers,
           std::vector<Group>& out) const {
    if (auto found = group(at, source, readers)) out.push_back(*found);
  }

  /// attention's values, whose heads are read by several heads of queries each
  void add_values(const std::string& at,
                  std::vector<Group>& out,
                  std::vector<std::string>& notes) const {
    auto found = group(at, "attn_v", {"attn_output"});
    if (!found) {
      if (find(at + "attn_output.weight")) note(at + "attn_output.weight", notes);
      return;
    }
    const auto& from = tensor(found->source).shape;
    const auto& to = tensor(found->readers.front()).shape;
    const int64_t rows = from.empty() ? 0 : from.front(), columns = to.empty() ? 0 : to.back(),
                  heads = model_.integer_or(".attention.head_count", 0),
                  of_values = model_.integer_or(".attention.head_count_kv", heads);
    if (heads <= 0 || of_values <= 0 || heads % of_values != 0 || rows % of_values != 0 ||
        columns != rows / of_values * heads)
      return note(at + "attn_output.weight", notes);
    found->heads = of_values;
    found->shared = heads / of_values;
    out.push_back(*found);
  }

  const GgufModel& model_;
  std::map<std::string, size_t, std::less<>> index_;
  std::set<std::string> layers_;  // "blk.0."
};

/// Throws where matrices of a group, or what gives their inputs, are of other sizes.
void check_sizes(const GgufModel& model, const Group& group) {
  const auto shape_of = [&](size_t i) -> const std::vector<int64_t>& {
    return model.tensors[i].shape;
  };
  const auto check_type = [&](size_t i) {
    const TensorView& tensor = model.tensors[i];
    if (!kernels::can_dequantize(tensor.dtype))
      fail(ErrorKind::file, "quantize", "{} is {}; expected floating-point numbers",
           format::in_quotes(tensor.name), name_of(tensor.dtype));
  };
  const auto wrong = [&](size_t i, int64_t wanted) {
    fail(ErrorKind::file, "quantize", "{} has shape {}, which does not fit {} inputs of {}",
         format::in_quotes(model.tensors[i].name), format::shape_text(shape_of(i)), wanted,
         model.tensors[group.products].name);
  };
  const auto& first = shape_of(group.products);
  const int64_t k = first.empty() ? 0 : first.back();
  if (k <= 0) wrong(group.products, k);
  for (const size_t reader : group.readers) {
    check_type(reader);
    if (shape_of(reader).empty() || shape_of(reader).back() != k) wrong(reader, k);
  }
  const int64_t rows = k / group.shared;
  for (const size_t from : {group.source, group.bias.value_or(group.source)}) {
    check_type(from);
    if (shape_of(from).empty() || shape_of(from).front() != rows || rows % group.heads != 0 ||
        format::element_count(shape_of(from)) <= 0)
      wrong(from, k);
  }
}

void check_known(const GgufModel& model) {
  const std::vector<std::string>& known = known_architectures();
  if (std::find(known.begin(), known.end(), model.architecture) == known.end())
    fail(ErrorKind::usage, "quantize",
         "scales between matrices of {} are not known; expected one of {}, or --calibrate gptq",
         model.architecture, fmt::join(known, ", "));
}

/// The numbers of a tensor in memory of its own, as float32, which the model then holds.
float* own_floats(TensorView& tensor) {
  const int64_t n = format::element_count(tensor.shape);
  auto numbers = std::make_shared<std::vector<float>>(static_cast<size_t>(n));
  kernels::dequantize(tensor.dtype, tensor.data.data(), n, numbers->data());
  float* data = numbers->data();
  tensor.dtype = DType::f32;
  tensor.data = std::as_bytes(std::span(*numbers));
  tensor.owner = std::move(numbers);
  return data;
}

int64_t columns_of(const TensorView& tensor) {
  return tensor.shape.back();
}

/// Makes scales equal where inputs are copies of the same value: [heads, shared, size].
void share(const Group& group, std::vector<float>& scales) {
  if (group.shared == 1) return;
  const int64_t size = std::ssize(scales) / (group.heads * group.shared);
  for (int64_t h = 0; h < group.heads; ++h)
    for (int64_t i = 0; i < size; ++i) {
      double log = 0;
      const auto at = [&](int64_t copy) -> float& {
        return scales[static_cast<size_t>((h * group.shared + copy) * size + i)];
      };
      for (int64_t copy = 0; copy < group.shared; ++copy) log += std::log(at(copy));
      for (int64_t copy = 0; copy < group.shared; ++copy)
        at(copy) = static_cast<float>(std::exp(log / static_cast<double>(group.shared)));
    }
}

void apply(GgufModel& model, const Group& group, const std::vector<float>& scales) {
  const int64_t k = std::ssize(scales);
  for (const size_t reader : group.readers) {
    TensorView& tensor = model.tensors[reader];
    float* w = own_floats(tensor);
    parallel_for(format::element_count(tensor.shape) / k, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t i = 0; i < k; ++i) w[row * k + i] *= scales[static_cast<size_t>(i)];
    });
  }
  // of copies the first has it
  TensorView& source = model.tensors[group.source];
  const int64_t rows = k / group.shared, size = rows / group.heads;
  const auto factor = [&](int64_t row) {
    return scales[static_cast<size_t>(row / size * group.shared * size + row % size)];
  };
  const auto divide = [&](TensorView& tensor) {
    const int64_t width = format::element_count(tensor.shape) / rows;
    float* w = own_floats(tensor);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < width; ++i) w[row * width + i] /= factor(row);
  };
  divide(source);
  if (group.bias) divide(model.tensors[*group.bias]);
}

/// Some rows of a reader.
std::vector<float> some_rows(const TensorView& tensor) {
  const int64_t k = columns_of(tensor), rows = format::element_count(tensor.shape) / k;
  const int64_t count = std::min(rows, kRowsTried);
  const int64_t size = storage_bytes(tensor.dtype, k);
  std::vector<float> out(static_cast<size_t>(count * k));
  for (int64_t i = 0; i < count; ++i)
    kernels::dequantize(tensor.dtype, tensor.data.data() + i * rows / count * size, k,
                        out.data() + i * k);
  check_finite(tensor.name, out);
  return out;
}

/// Sum of e X^T X e^T, where e is what is left of rows that are scaled, rounded and scaled back.
double error_of(DType type,
                const std::vector<float>& w,
                const std::vector<float>& scales,
                const float* products) {
  const int64_t k = std::ssize(scales), rows = std::ssize(w) / k;
  std::vector<float> scaled(w), importance(scales.size()), y(w.size());
  for (int64_t i = 0; i < k; ++i) {
    const float s = scales[static_cast<size_t>(i)];
    importance[static_cast<size_t>(i)] = products[i * k + i] / (s * s);
  }
  for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= scales[i % scales.size()];
  std::vector<uint8_t> blocks(static_cast<size_t>(storage_bytes(type, rows * k)));
  kernels::quantize_rows(type, scaled.data(), rows, k, importance.data(), blocks.data());
  kernels::dequantize(type, blocks.data(), rows * k, scaled.data());
  for (size_t i = 0; i < scaled.size(); ++i)
    scaled[i] = scaled[i] / scales[i % scales.size()] - w[i];
  kernels::matmul(scaled.data(), rows, k, k, DType::f32, products, k, nullptr, y.data(), k);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i)
    sum += static_cast<double>(scaled[i]) * static_cast<double>(y[i]);
  return sum;
}

std::vector<float> best_scales(const GgufModel& model,
                               const Group& group,
                               const std::vector<DType>& types,
                               const float* products) {
  const int64_t k = columns_of(model.tensors[group.products]);
  std::vector<std::pair<DType, std::vector<float>>> tried;
  for (const size_t reader : group.readers) {
    if (!kernels::can_quantize(types[reader])) continue;
    tried.emplace_back(types[reader], some_rows(model.tensors[reader]));
  }
  std::vector<float> best;
  double least = 0;
  for (int step = 0; step < kAlphas && !tried.empty(); ++step) {
    std::vector<float> scales(static_cast<size_t>(k));
    const float alpha = static_cast<float>(step) / kAlphas;
    for (int64_t i = 0; i < k; ++i)
      scales[static_cast<size_t>(i)] =
          std::max(1e-4F, std::pow(std::sqrt(products[i * k + i]), alpha));
    share(group, scales);
    const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
    const float middle = std::sqrt(*low * *high);
    for (float& s : scales) s /= middle;
    double error = 0;
    for (const auto& [type, w] : tried) error += error_of(type, w, scales, products);
    if (step > 0 && error >= least) continue;
    least = error;
    best = std::move(scales);
  }
  return best;
}

}  // namespace

Importance InputScaling::importance(Importance before) const {
  for (const auto& [name, own] : scales) {
    const auto found = before.find(name);
    if (found == before.end()) continue;
    for (size_t i = 0; i < found->second.size(); ++i) {
      const float s = own[i % own.size()];
      found->second[i] /= s * s;
    }
  }
  return before;
}

InputProductsOf InputScaling::products(InputProductsOf before) const {
  return [before = std::move(before), scales = scales, own = std::vector<float>()](
             const std::string& name, int64_t index) mutable -> const float* {
    const float* from = before(name, index);
    const auto found = scales.find(name);
    if (from == nullptr || found == scales.end()) return from;
    const std::vector<float>& s = found->second;
    own.assign(from, from + s.size() * s.size());
    for (size_t a = 0; a < s.size(); ++a)
      for (size_t b = 0; b < s.size(); ++b) own[a * s.size() + b] /= s[a] * s[b];
    return own.data();
  };
}

std::vector<std::string> scaling_products(const GgufModel& model) {
  check_known(model);
  std::vector<std::string> names, unused;
  for (const Group& group : Layers(model).groups(unused)) {
    check_sizes(model, group);
    names.push_back(model.tensors[group.products].name);
  }
  return names;
}

InputScaling scale_inputs(GgufModel& model,
                          const QuantizeReport& report,
                          const InputProductsOf& products) {
  check_known(model);
  InputScaling out;
  for (const Group& group : Layers(model).groups(out.notes)) {
    check_sizes(model, group);
    const float* seen = products(model.tensors[group.products].name, 0);
    if (seen == nullptr) {
      out.notes.push_back(model.tensors[group.products].name + ": nothing of the text reached it");
      continue;
    }
    const std::vector<float> scales = best_scales(model, group, report.types, seen);
    if (scales.empty()) continue;
    apply(model, group, scales);
    for (const size_t reader : group.readers) out.scales[model.tensors[reader].name] = scales;
  }
  return out;
}

InputScaling scale_inputs_by(GgufModel& model, const ScalesOf& of) {
  check_known(model);
  InputScaling out;
  for (const Group& group : Layers(model).groups(out.notes)) {
    check_sizes(model, group);
    const TensorView& reader = model.tensors[group.products];
    std::vector<float> scales = of(reader.name, columns_of(reader));
    share(group, scales);
    apply(model, group, scales);
    for (const size_t i : group.readers) out.scales[model.tensors[i].name] = scales;
  }
  return out;
}

}  // namespace tessera::convert
