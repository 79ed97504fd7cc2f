#include "tessera/convert/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/convert/family.h"
#include "tessera/convert/rounded.h"
#include "tessera/format/file_source.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/quantize.h"

namespace tessera::convert {
namespace {

using format::GgufTensor;
using format::GgufValue;
using format::in_quotes;
using format::shape_text;

// --- recipes of types ----------------------------------------------------------------------------

/// What a matrix does, as far as recipes distinguish matrices; `value` also where queries, keys and
/// values are one.
enum class Part { embedding, head, key, value, output, down, other };

/// Of the layers, those where a choice holds.
enum class Where {
  all,
  shared,  // keys and values each serve four heads or more
  first_two,
  first_four,
  first_eighth,
  first_sixteenth,
  more_bits,  // the first and last eighth, and every third between
};

struct Choice {
  Part part;
  Where where;
  DType type;
};

constexpr size_t kMostChoices = 5;

struct TypeMixture {
  const char* name;
  uint32_t number;  // general.file_type
  DType type;       // of most matrices
  std::array<Choice, kMostChoices> choices = {};
  size_t count = 0;
};

template <class... Choices>
constexpr TypeMixture recipe(const char* name, uint32_t number, DType type, Choices... choices) {
  return {name, number, type, {choices...}, sizeof...(choices)};
}

constexpr DType k2 = DType::q2_k, k3 = DType::q3_k, k4 = DType::q4_k, k5 = DType::q5_k,
                k6 = DType::q6_k;

// in each the first choice that fits counts
constexpr TypeMixture kMixtures[] = {
    recipe("F32", 0, DType::f32),
    recipe("F16", 1, DType::f16),
    recipe("BF16", 32, DType::bf16),
    recipe("Q4_0", 2, DType::q4_0),
    recipe("Q4_1", 3, DType::q4_1),
    recipe("Q5_0", 8, DType::q5_0),
    recipe("Q5_1", 9, DType::q5_1),
    recipe("Q8_0", 7, DType::q8_0),
    recipe("Q2_K",
           10,
           k2,
           Choice{Part::value, Where::shared, k4},
           Choice{Part::value, Where::all, k3},
           Choice{Part::down, Where::all, k3},
           Choice{Part::output, Where::all, k3}),
    recipe("Q2_K_S",
           21,
           k2,
           Choice{Part::value, Where::shared, k4},
           Choice{Part::down, Where::first_eighth, k4}),
    recipe("Q3_K_S", 11, k3),
    recipe("Q3_K_M",
           12,
           k3,
           Choice{Part::value, Where::first_two, k5},
           Choice{Part::value, Where::all, k4},
           Choice{Part::down, Where::first_sixteenth, k5},
           Choice{Part::down, Where::all, k4},
           Choice{Part::output, Where::all, k4}),
    recipe("Q3_K_L",
           13,
           k3,
           Choice{Part::value, Where::all, k5},
           Choice{Part::down, Where::all, k5},
           Choice{Part::output, Where::all, k5}),
    recipe("Q4_K_S",
           14,
           k4,
           Choice{Part::value, Where::first_four, k5},
           Choice{Part::down, Where::first_eighth, k5}),
    recipe("Q4_K_M",
           15,
           k4,
           Choice{Part::value, Where::more_bits, k6},
           Choice{Part::down, Where::more_bits, k6}),
    recipe("Q5_K_S", 16, k5),
    recipe("Q5_K_M",
           17,
           k5,
           Choice{Part::value, Where::more_bits, k6},
           Choice{Part::down, Where::more_bits, k6}),
    recipe("Q6_K", 18, k6),
    recipe("IQ4_NL",
           25,
           DType::iq4_nl,
           Choice{Part::value, Where::shared, k5},
           Choice{Part::down, Where::first_eighth, k5}),
    recipe("IQ4_XS",
           30,
           DType::iq4_xs,
           Choice{Part::value, Where::shared, k5},
           Choice{Part::down, Where::first_eighth, k5}),
    recipe("TQ1_0", 36, DType::tq1_0, Choice{Part::embedding, Where::all, k4}),
    recipe("TQ2_0", 37, DType::tq2_0, Choice{Part::embedding, Where::all, k4}),
    recipe("MXFP4_MOE", 38, DType::mxfp4),
};

std::string in_case(std::string text, int (*change)(int)) {
  for (char& c : text) c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return text;
}

const TypeMixture& mixture_named(const std::string& name) {
  std::string wanted = in_case(name, std::toupper);
  // as llama.cpp understands them
  for (const char* family : {"Q3_K", "Q4_K", "Q5_K"})
    if (wanted == family) wanted += "_M";
  for (const TypeMixture& recipe : kMixtures)
    if (wanted == recipe.name) return recipe;
  fail(ErrorKind::usage, "quantize", "unknown type {}; known: {}", in_quotes(name),
       fmt::join(quantize_recipes(), ", "));
}

Part part_of(std::string_view name) {
  if (name == "output.weight") return Part::head;
  if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") return Part::embedding;
  for (const auto& [word, part] : {std::pair{"attn_qkv.weight", Part::value},
                                   {"attn_kv_b.weight", Part::value},
                                   {"attn_v.weight", Part::value},
                                   {"attn_k.weight", Part::key},
                                   {"attn_output.weight", Part::output},
                                   {"ffn_down", Part::down}})
    if (name.find(word) != std::string_view::npos) return part;
  return Part::other;
}

/// "blk.12." -> 12
std::optional<int64_t> layer_of(std::string_view name) {
  if (!name.starts_with("blk.")) return std::nullopt;
  int64_t layer = 0;
  for (const char c : name.substr(4)) {
    if (c == '.') return layer;
    if (c < '0' || c > '9' || layer > 1'000'000) return std::nullopt;
    layer = 10 * layer + (c - '0');
  }
  return std::nullopt;
}

bool more_bits(int64_t i, int64_t n) {
  return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/// Chooses by a recipe, tensor by tensor in the order of the layers.
class Chooser {
 public:
  Chooser(const GgufModel& model, const TypeMixture& recipe, bool weighted)
      : mixture_(recipe), name_(recipe.name), weighted_(weighted) {
    // its files alone say how their queries, keys and values lie
    const GgufValue* layout = model.find(".tensor_data_layout");
    falcon_ = layout != nullptr && layout->type() == format::GgufType::string &&
              layout->as_string() == "jploski";
    layers_ = model.integer_or(".block_count", 0);
    experts_ = model.integer_or(".expert_count", 0);
    const int64_t heads = model.integer_or(".attention.head_count", 1);
    shared_by_ = heads / std::max<int64_t>(1, model.integer_or(".attention.head_count_kv", heads));
    for (const TensorView& tensor : model.tensors) {
      tied_ = tied_ && tensor.name != "output.weight";
      values_ += part_of(tensor.name) == Part::value ? 1 : 0;
    }
  }

  DType operator()(const TensorView& tensor) {
    const Part part = part_of(tensor.name);
    const bool mixture = mixture_.type == DType::mxfp4;
    if (part == Part::head || (tied_ && part == Part::embedding)) {
      const bool whole = tensor.shape.back() % layout_of(mixture_.type).block_elements == 0;
      const bool eight = mixture || falcon_ || !whole || mixture_.type == DType::q8_0;
      return eight ? DType::q8_0 : k6;
    }
    if (mixture) return tensor.shape.size() > 2 ? DType::mxfp4 : DType::q8_0;
    if (part == Part::value) return of_values(value_++);
    if (part == Part::key && experts_ == 8) return DType::q8_0;
    if (part == Part::down) return of_down(tensor, down_++);
    if (part == Part::output) return of_output();
    return part == Part::embedding ? chosen(part, 0, 1) : mixture_.type;
  }

 private:
  bool named(std::initializer_list<std::string_view> names) const {
    return std::find(names.begin(), names.end(), name_) != names.end();
  }
  DType chosen(Part part, int64_t i, int64_t n) const {
    for (size_t c = 0; c < mixture_.count; ++c) {
      const Choice& choice = mixture_.choices[c];
      if (choice.part == part && holds(choice.where, i, n)) return choice.type;
    }
    return mixture_.type;
  }
  bool holds(Where where, int64_t i, int64_t n) const {
    switch (where) {
      case Where::shared:
        return shared_by_ >= 4;
      case Where::first_two:
        return i < 2;
      case Where::first_four:
        return i < 4;
      case Where::first_eighth:
        return i < n / 8;
      case Where::first_sixteenth:
        return i < n / 16;
      case Where::more_bits:
        return more_bits(i, n);
      case Where::all:
        break;
    }
    return true;
  }

  DType of_values(int64_t i) const {
    DType type = chosen(Part::value, i, values_);
    // where eight heads share them they are small, and 80 layers are a model of 70B
    if (layers_ == 80 && shared_by_ == 8 && (type == k3 || type == k4)) type = k5;
    return experts_ == 8 ? DType::q8_0 : type;
  }

  DType of_down(const TensorView& tensor, int64_t visited) const {
    const int64_t i = experts_ > 1 ? layer_of(tensor.name).value_or(0) : visited;
    if (weighted_ && named({"IQ4_NL", "IQ4_XS"})) return mixture_.type;
    // importance alone does not save the first layers there
    if (weighted_ && named({"Q4_0", "Q5_0"}) && i < layers_ / 8)
      return mixture_.type == DType::q4_0 ? DType::q4_1 : DType::q5_1;
    if (falcon_) {
      if (named({"Q3_K_L", "Q4_K_S"})) return k4;
      if (named({"Q3_K_M"}) && i >= layers_ / 16 && !more_bits(i, layers_)) return k3;
      if (named({"Q4_K_M"})) return i < layers_ / 16 ? k6 : more_bits(i, layers_) ? k5 : k4;
    }
    return chosen(Part::down, i, layers_);
  }

  DType of_output() const {
    if (falcon_) return named({"Q3_K_L"}) ? k4 : mixture_.type;
    if (experts_ != 8) return chosen(Part::output, 0, layers_);
    return named({"Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"})
               ? k5
               : mixture_.type;
  }

  const TypeMixture& mixture_;
  std::string_view name_;
  bool weighted_, falcon_ = false, tied_ = true;
  int64_t layers_ = 0, experts_ = 0, shared_by_ = 1, values_ = 0;
  int64_t value_ = 0, down_ = 0;  // visited
};

/// What a type becomes where rows are no whole blocks of it.
DType fitting(DType type, int64_t k) {
  if (k % layout_of(type).block_elements == 0) return type;
  DType smaller = type;
  switch (type) {
    case DType::q2_k:
    case DType::q3_k:
    case DType::tq1_0:
    case DType::tq2_0:
      smaller = DType::q4_0;
      break;
    case DType::q4_k:
      smaller = DType::q5_0;
      break;
    case DType::q5_k:
      smaller = DType::q5_1;
      break;
    case DType::q6_k:
      smaller = DType::q8_0;
      break;
    case DType::iq4_xs:
      smaller = DType::iq4_nl;
      break;
    default:
      break;
  }
  return k % layout_of(smaller).block_elements == 0 ? smaller : DType::f16;
}

/// Indices of the tensors, layer by layer and by name in each; those of no layer first.
std::vector<size_t> in_order_of_layers(const GgufModel& model) {
  std::vector<size_t> order(model.tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](size_t i) {
    const std::string& name = model.tensors[i].name;
    return std::pair(layer_of(name).value_or(-1), std::string_view(name));
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

int64_t row_of(const TensorView& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

// --- numbers -------------------------------------------------------------------------------------

void write_halves(DType type, const float* from, int64_t n, uint8_t* to) {
  parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t bits = type == DType::f16 ? float_to_f16(from[i]) : float_to_bf16(from[i]);
      std::memcpy(to + 2 * i, &bits, sizeof bits);
    }
  });
}

/// What a tensor's values are rounded by.
struct RoundedBy {
  const std::vector<float>* importance = nullptr;
  const InputProductsOf* products = nullptr;
  kernels::FeedbackOptions feedback;
};

/// A tensor's rows in another type, in memory that is used again.
class Rounder {
 public:
  std::span<const std::byte> operator()(const TensorView& tensor, DType type, const RoundedBy& by) {
    if (tensor.dtype == type) return tensor.data;
    const int64_t k = row_of(tensor);
    const int64_t rows = k == 0 ? 0 : format::element_count(tensor.shape) / k;
    const int64_t of_matrix = tensor.shape.size() < 2 ? 1 : tensor.shape[tensor.shape.size() - 2];
    const int64_t from_row = storage_bytes(tensor.dtype, k), to_row = storage_bytes(type, k);
    out_.resize(static_cast<size_t>(rows * to_row));
    // some rows at a time, of one matrix
    const int64_t most = std::max<int64_t>(1, (int64_t{4} << 20) / std::max<int64_t>(1, k));
    std::optional<kernels::ErrorFeedback> feedback;
    for (int64_t row = 0; row < rows;) {
      const int64_t matrix = row / of_matrix;
      if (by.products != nullptr && row % of_matrix == 0) {
        feedback.reset();
        if (const float* products = (*by.products)(tensor.name, matrix))
          feedback.emplace(products, k, by.feedback);
      }
      const int64_t count = std::min(most, (matrix + 1) * of_matrix - row);
      floats_.resize(static_cast<size_t>(count * k));
      kernels::dequantize(tensor.dtype, tensor.data.data() + row * from_row, count * k,
                          floats_.data());
      if (is_block_type(type)) check_finite(tensor.name, floats_);
      auto* to = reinterpret_cast<uint8_t*>(out_.data()) + row * to_row;
      const float* weights =
          by.importance == nullptr ? nullptr : by.importance->data() + matrix * k;
      if (type == DType::f32)
        std::ranges::copy(std::as_bytes(std::span(floats_)), reinterpret_cast<std::byte*>(to));
      else if (feedback)
        feedback->round_rows(type, floats_.data(), count, to);
      else if (is_block_type(type))
        kernels::quantize_rows(type, floats_.data(), count, k, weights, to);
      else
        write_halves(type, floats_.data(), count * k, to);
      row += count;
    }
    return out_;
  }

 private:
  std::vector<float> floats_;
  std::vector<std::byte> out_;
};

/// Of the tensor, or null; throws where it is of another size.
const std::vector<float>* importance_of(const TensorView& tensor, const Importance* all) {
  if (all == nullptr) return nullptr;
  const auto found = all->find(tensor.name);
  if (found == all->end()) return nullptr;
  int64_t wanted = row_of(tensor);
  for (size_t axis = 0; axis + 2 < tensor.shape.size(); ++axis) wanted *= tensor.shape[axis];
  if (std::ssize(found->second) != wanted)
    fail(ErrorKind::usage, "quantize",
         "the importance of {} has {} numbers; a matrix of shape {} wants {}",
         in_quotes(tensor.name), found->second.size(), shape_text(tensor.shape), wanted);
  return &found->second;
}

/// Whether its values are rounded to what their inputs say.
bool is_calibrated(const TensorView& tensor, DType type) {
  return type != tensor.dtype && kernels::can_round_with_feedback(type) &&
         part_of(tensor.name) != Part::embedding;
}

std::vector<DType> types_for(const GgufModel& model,
                             const QuantizeOptions& options,
                             std::vector<std::string>& notes) {
  const TypeMixture& recipe = mixture_named(options.recipe);
  Chooser chooser(model, recipe, options.importance != nullptr);
  std::vector<DType> types(model.tensors.size());
  std::vector<bool> used(options.rules.size());
  if (!model.widened.empty() && is_block_type(recipe.type) && !options.requantize)
    fail(ErrorKind::usage, "quantize",
         "{} is in fewer bits already, and would be rounded a second time; expected floats, or "
         "--requantize to accept the loss",
         model.widened);
  for (const size_t i : in_order_of_layers(model)) {
    const TensorView& tensor = model.tensors[i];
    types[i] = tensor.dtype;
    const auto rule =
        std::find_if(options.rules.begin(), options.rules.end(),
                     [&](const TypeRule& r) { return matches_glob(tensor.name, r.glob); });
    const bool named = rule != options.rules.end(), large = is_large_matrix(tensor);
    if (named) used[static_cast<size_t>(rule - options.rules.begin())] = true;
    if (!large && !named) continue;
    DType wanted = recipe.type;
    if (named)
      wanted = rule->type;
    else if (is_block_type(recipe.type) && !options.pure)
      wanted = chooser(tensor);
    types[i] = fitting(wanted, row_of(tensor));
    if (types[i] != wanted)
      notes.push_back(fmt::format("{}: rows of {} are no whole blocks of {}; written as {}",
                                  tensor.name, row_of(tensor), name_of(wanted), name_of(types[i])));
    const bool rounds = types[i] != tensor.dtype && types[i] != DType::f32;
    if (is_block_type(tensor.dtype) && rounds && !options.requantize &&
        !ternary_holds(types[i], tensor))
      fail(ErrorKind::usage, "quantize",
           "{} is {} already, and would be rounded a second time; expected floats, or "
           "--requantize to accept the loss",
           tensor.name, name_of(tensor.dtype));
    const auto* importance = importance_of(tensor, options.importance);
    const Part part = part_of(tensor.name);
    if (std::string_view(recipe.name) == "Q2_K_S" && types[i] == k2 && part != Part::embedding &&
        part != Part::head && importance == nullptr)
      fail(ErrorKind::usage, "quantize",
           "Q2_K_S is worth little without the importance of columns, which {} lacks; give "
           "--importance, or take Q2_K",
           tensor.name);
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      fail(ErrorKind::usage, "quantize", "rule {} matches no tensor, or one before it does",
           in_quotes(options.rules[i].glob));
  return types;
}

// --- files of importance -------------------------------------------------------------------------

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> out(static_cast<size_t>(format::element_count(tensor.shape)));
  std::ranges::copy(tensor.data, std::as_writable_bytes(std::span(out)).begin());
  return out;
}

}  // namespace

void check_finite(const std::string& name, std::span<const float> numbers) {
  if (!std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }))
    fail(ErrorKind::file, name,
         "a number is not finite; expected finite numbers, as blocks hold no others");
}

std::vector<std::string> quantize_recipes() {
  std::vector<std::string> names;
  for (const TypeMixture& recipe : kMixtures) names.emplace_back(recipe.name);
  return names;
}

TypeRule parse_type_rule(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    fail(ErrorKind::usage, "quantize",
         "rule {}; expected NAMES=TYPE, like 'blk.*.attn_v.weight=q6_k'", in_quotes(text));
  const DType type = dtype_named(in_case(text.substr(equals + 1), std::tolower));
  const bool is_float = type == DType::f32 || type == DType::f16 || type == DType::bf16;
  if (!is_float && !kernels::can_quantize(type))
    fail(ErrorKind::usage, "quantize",
         "rule {}: weights of {}, which nothing writes; expected f32, f16, bf16 or blocks",
         in_quotes(text), name_of(type));
  return {text.substr(0, equals), type};
}

QuantizeReport report_of(const GgufModel& model, const QuantizeOptions& options) {
  QuantizeReport report;
  report.types = types_for(model, options, report.notes);
  for (size_t i = 0; i < report.types.size(); ++i) {
    const TensorView& tensor = model.tensors[i];
    const int64_t elements = format::element_count(tensor.shape);
    report.elements += elements;
    report.elements_of[report.types[i]] += elements;
    report.bytes += storage_bytes(report.types[i], elements);
    report.bytes_before += std::ssize(tensor.data);
  }
  return report;
}

std::vector<std::string> calibrated(const GgufModel& model, const QuantizeReport& report) {
  std::vector<std::string> names;
  for (size_t i = 0; i < report.types.size(); ++i)
    if (is_calibrated(model.tensors[i], report.types[i])) names.push_back(model.tensors[i].name);
  return names;
}

QuantizeReport write_quantized(GgufModel model,
                               const std::filesystem::path& out,
                               const QuantizeOptions& options) {
  QuantizeReport report = report_of(model, options);
  model.set("general.quantization_version", GgufValue::number(uint32_t{2}));
  model.set("general.file_type", GgufValue::number(mixture_named(options.recipe).number));
  std::vector<GgufTensor> heads;
  for (size_t i = 0; i < report.types.size(); ++i)
    heads.push_back({model.tensors[i].name, report.types[i], model.tensors[i].shape});
  Rounder rounder;
  report.files = format::write_gguf_parts(
      out, model.entries, heads,
      [&](size_t i) {
        const DType type = report.types[i];
        RoundedBy by{
            importance_of(model.tensors[i], is_block_type(type) ? options.importance : nullptr),
            nullptr, options.feedback};
        if (options.products && is_calibrated(model.tensors[i], type))
          by.products = &options.products;
        const auto bytes = rounder(model.tensors[i], type, by);
        if (options.progress) options.progress(i + 1, heads.size(), heads[i].name, type);
        return bytes;
      },
      options.part_bytes);
  return report;
}

Importance read_importance(const std::filesystem::path& path) {
  const format::GgufFile file = format::open_gguf(path);
  const std::string name = path.string();
  const format::FileSource source{"importance", name};
  if (file.metadata.find("general.type") == nullptr ||
      file.metadata.get_string("general.type") != "imatrix")
    source.fail("general.type is not \"imatrix\"; expected a file of importance in GGUF");
  Importance out;
  for (const TensorView& sums : file.tensors.tensors()) {
    if (!sums.name.ends_with(kSums)) continue;
    const std::string weight = sums.name.substr(0, sums.name.size() - kSums.size());
    const TensorView& counts = file.tensors.at(weight + std::string(kCounts));
    if (sums.dtype != DType::f32 || counts.dtype != DType::f32)
      source.fail("{} is not f32, or its counts are not", in_quotes(sums.name));
    std::vector<float> values = floats_of(sums);
    const std::vector<float> of_matrices = floats_of(counts);
    if (of_matrices.empty() || values.empty() || values.size() % of_matrices.size() != 0)
      source.fail("{} has {} numbers, of {} matrices", in_quotes(sums.name), values.size(),
                  of_matrices.size());
    const size_t k = values.size() / of_matrices.size();
    for (size_t i = 0; i < values.size(); ++i) {
      const float count = of_matrices[i / k];
      // a matrix that saw nothing: all its columns alike
      values[i] = count > 0 ? values[i] / count : 1;
      if (!std::isfinite(values[i]) || values[i] < 0)
        source.fail("{} holds {}; expected sums of squares", in_quotes(sums.name), values[i]);
    }
    out.emplace(weight, std::move(values));
  }
  if (out.empty()) source.fail("holds no sums; expected tensors that end with {}", kSums);
  return out;
}

void write_importance(const std::filesystem::path& path,
                      const Importance& importance,
                      int64_t tokens,
                      const std::string& text) {
  const std::vector<std::string> texts = {text};
  const std::vector<format::GgufEntry> entries = {
      {"general.type", GgufValue::string("imatrix")},
      {"imatrix.datasets", GgufValue::strings(texts)},
      {"imatrix.chunk_count", GgufValue::number(uint32_t{1})},
      {"imatrix.chunk_size", GgufValue::number(static_cast<uint32_t>(tokens))}};
  static constexpr float kOne = 1;
  std::vector<TensorView> tensors;
  for (const auto& [name, values] : importance) {
    // means, of one row each
    tensors.push_back({name + std::string(kSums),
                       DType::f32,
                       {1, std::ssize(values)},
                       std::as_bytes(std::span(values))});
    tensors.push_back(
        {name + std::string(kCounts), DType::f32, {1, 1}, std::as_bytes(std::span(&kOne, 1))});
  }
  format::write_gguf(path, entries, tensors);
}

}  // namespace tessera::convert
