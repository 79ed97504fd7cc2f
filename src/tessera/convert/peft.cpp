#include "tessera/convert/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/mapping.h"
#include "tessera/format/file_source.h"
#include "tessera/format/safetensors.h"
#include "tessera/model/virtual_tokens.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/text/regex.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kWeight = ".weight",
                           kMagnitude = ".lora_magnitude_vector", kFactors = ".ia3_l",
                           kVectors = "prompt_embeddings";
/// Parts of model::Overlay (model::kOverlayParts).
constexpr const char *kLoraA = "lora_a", *kLoraB = "lora_b", *kLengths = "magnitude", *kOut = "out",
                     *kIn = "in", *kVirtual = "prefix";
constexpr std::array<int64_t, 2> kTurn = {1, 0};

/// What a folder holds.
enum class Kind { lora, ia3, prefix, prompt };
struct KindName {
  const char* name;
  Kind kind;
};
/// Files of p-tuning hold the vectors that its encoder came to: a prompt.
constexpr KindName kKinds[] = {{"LORA", Kind::lora},
                               {"IA3", Kind::ia3},
                               {"PREFIX_TUNING", Kind::prefix},
                               {"PROMPT_TUNING", Kind::prompt},
                               {"P_TUNING", Kind::prompt}};

/// Keys of the config that say what the tensors say themselves, or nothing about the function.
constexpr const char* kSilent[] = {
    "target_modules", "exclude_modules", "modules_to_save", "task_type", "inference_mode",
    "auto_mapping",   "revision",        "peft_version",    "peft_type", "base_model_name_or_path",
    "fan_in_fan_out"};
constexpr const char* kSilentLora[] = {"r",
                                       "layers_to_transform",
                                       "layers_pattern",
                                       "lora_dropout",
                                       "rank_pattern",
                                       "megatron_core",
                                       "qalora_group_size",
                                       "lora_alpha",
                                       "alpha_pattern",
                                       "use_rslora",
                                       "use_dora",
                                       "init_lora_weights"};
constexpr const char* kSilentIa3[] = {"feedforward_modules", "init_ia3_weights"};
constexpr const char* kSilentVirtual[] = {
    "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads",
    "num_layers", "init_weights", "encoder_hidden_size", "encoder_num_layers", "encoder_dropout",
    "encoder_reparameterization_type", "prompt_tuning_init", "prompt_tuning_init_text",
    "prompt_tuning_init_state_dict_path", "tokenizer_name_or_path", "tokenizer_kwargs",
    "modules_to_save",
    // what the projection made is what the file holds
    "prefix_projection"};

/// Ways to begin that take what the adapter begins with out of the model.
constexpr std::string_view kChangedBase[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none") ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

/// adapter_config.json: what kind of adapter, and how its products count.
class PeftConfig {
 public:
  explicit PeftConfig(const fs::path& path) : file_(path.string()) {
    config_ = spec::read_json_file(path);
    if (!config_.is_object())
      fail(ErrorKind::file, file_, "found {}; expected an object", spec::kind_of(config_));
    read_kind();
    const Json begin = config_.value("init_lora_weights", Json());
    if (begin.is_string())
      for (const std::string_view name : kChangedBase)
        if (begin.get<std::string>().starts_with(name))
          fail(ErrorKind::file, file_,
               "init_lora_weights = {} has changed the model that the adapter stands beside; "
               "expected an adapter of the model as it is",
               begin.dump());
    for (const auto& [key, value] : config_.items())
      if (!silent(key) && !says_nothing(value))
        fail(ErrorKind::file, file_, "{} = {} is not supported; expected {} without it", key,
             shown(value), config_["peft_type"].get<std::string>());
    if (config_.value("target_modules", Json()) == Json(nullptr) &&
        config_.contains("target_modules") && (kind_ == Kind::lora || kind_ == Kind::ia3))
      fail(
          ErrorKind::file, file_,
          "target_modules is null, which means modules by the kind of model; expected their names");
    if (kind_ == Kind::lora) read_scales();
  }

  Kind kind() const { return kind_; }
  bool dora() const { return flag("use_dora"); }
  bool by_root() const { return flag("use_rslora"); }
  const Json& at(const char* key) const {
    static const Json nothing;
    const auto found = config_.find(key);
    return found == config_.end() ? nothing : *found;
  }

  /// On the product of a module, whose rank is `rank`.
  double scale_of(const std::string& module, int64_t rank) const {
    double alpha = alpha_;
    std::optional<double> special;
    for (const Pattern& pattern : patterns_) {
      if (!pattern.names(module)) continue;
      // PEFT takes the first, and an object has no order to rely on
      if (special && *special != pattern.alpha)
        fail(ErrorKind::file, file_, "alpha_pattern has several values for module {}", module);
      special = pattern.alpha;
    }
    if (special) alpha = *special;
    const auto r = static_cast<double>(rank);
    return alpha / (by_root() ? std::sqrt(r) : r);
  }

 private:
  /// A key of alpha_pattern: (.*\.)?(key)$
  struct Pattern {
    std::string key;
    std::shared_ptr<const text::Regex> regex;  // null of a plain name
    double alpha;
    bool names(const std::string& module) const {
      if (regex == nullptr) return module == key || module.ends_with("." + key);
      const auto spans = regex->spans(module);
      return spans.size() == 1 && spans.front().is_match;
    }
  };

  bool flag(const char* key) const { return at(key) == Json(true); }

  void read_kind() {
    const Json type = config_.value("peft_type", Json());
    for (const KindName& known : kKinds)
      if (type == Json(known.name)) {
        kind_ = known.kind;
        return;
      }
    fail(ErrorKind::file, file_,
         "peft_type = {}; expected \"LORA\", \"IA3\", \"PREFIX_TUNING\", \"PROMPT_TUNING\" or "
         "\"P_TUNING\"",
         type.dump());
  }

  bool silent(const std::string& key) const {
    const auto in = [&key](std::span<const char* const> keys) {
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    };
    return in(kSilent) || (kind_ == Kind::lora  ? in(kSilentLora)
                           : kind_ == Kind::ia3 ? in(kSilentIa3)
                                                : in(kSilentVirtual));
  }

  void read_scales() {
    alpha_ = number(config_, "lora_alpha");
    const Json patterns = config_.value("alpha_pattern", Json());
    if (!patterns.is_null() && !patterns.is_object())
      fail(ErrorKind::file, file_, "alpha_pattern is {}; expected an object",
           spec::kind_of(patterns));
    if (patterns.is_null()) return;
    for (const auto& [name, value] : patterns.items()) {
      Pattern pattern{name, nullptr, number(patterns, name)};
      if (name.find_first_of("*+?()[]{}|^$\\") != std::string::npos)
        pattern.regex = std::make_shared<const text::Regex>("\\A(?:.*\\.)?(?:" + name + ")\\z",
                                                            file_ + ": alpha_pattern");
      patterns_.push_back(std::move(pattern));
    }
  }

  double number(const Json& of, const std::string& key) const {
    const auto found = of.find(key);
    if (found == of.end() || !found->is_number())
      fail(ErrorKind::file, file_, "{} is {}; expected a number", key,
           found == of.end() ? "missing" : spec::kind_of(*found));
    return found->get<double>();
  }

  std::string file_;
  Json config_;
  Kind kind_ = Kind::lora;
  double alpha_ = 0;
  std::vector<Pattern> patterns_;
};

/// What a file holds beside one module.
struct Beside {
  const TensorView *a = nullptr, *b = nullptr, *magnitude = nullptr, *factors = nullptr;
};
struct Found {
  std::map<std::string, Beside> modules;
  std::map<std::string, const TensorView*> whole;  // by the model's own names of tensors
  const TensorView* vectors = nullptr;             // of virtual tokens
};

/// Whether the config says that a tensor's module was trained whole.
bool saved(const Json& modules, const std::string& tensor) {
  if (!modules.is_array()) return false;
  const std::string module = tensor.substr(0, tensor.rfind('.'));
  return std::any_of(modules.begin(), modules.end(), [&](const Json& name) {
    if (!name.is_string()) return false;
    const std::string own = name.get<std::string>();
    return !own.empty() &&
           (module == own || module.ends_with("." + own) ||
            module.find("." + own + ".") != std::string::npos || module.starts_with(own + "."));
  });
}

void check_axes(const format::TensorFile& file, const TensorView& tensor, size_t axes) {
  if (tensor.shape.size() != axes)
    fail(ErrorKind::file, file.file(), "tensor {} has shape {}; expected {} axes",
         format::in_quotes(tensor.name), format::shape_text(tensor.shape), axes);
}

Found tensors_of(const format::TensorFile& file, const PeftConfig& config) {
  Found found;
  const auto places = std::array{std::tuple(kA, &Beside::a, Kind::lora, size_t{2}),
                                 std::tuple(kB, &Beside::b, Kind::lora, size_t{2}),
                                 std::tuple(kMagnitude, &Beside::magnitude, Kind::lora, size_t{1}),
                                 std::tuple(kFactors, &Beside::factors, Kind::ia3, size_t{2})};
  for (const TensorView& tensor : file.tensors()) {
    const std::string& name = tensor.name;
    if (name == kVectors && (config.kind() == Kind::prefix || config.kind() == Kind::prompt)) {
      check_axes(file, tensor, 2);
      found.vectors = &tensor;
      continue;
    }
    bool placed = false;
    for (const auto& [end, part, kind, axes] : places) {
      if (!name.starts_with(kPeftPrefix) || !name.ends_with(end) || kind != config.kind() ||
          name.size() <= kPeftPrefix.size() + end.size())
        continue;
      check_axes(file, tensor, axes);
      found.modules[name.substr(kPeftPrefix.size(),
                                name.size() - kPeftPrefix.size() - end.size())].*
          part = &tensor;
      placed = true;
    }
    if (placed) continue;
    const bool whole = name.starts_with(kPeftPrefix) &&
                       saved(config.at("modules_to_save"), name.substr(kPeftPrefix.size()));
    if (!whole)
      fail(ErrorKind::file, file.file(), "tensor {} is not supported; expected names {}",
           format::in_quotes(name),
           config.kind() == Kind::lora  ? "base_model.model.MODULE.lora_A.weight and .lora_B.weight"
           : config.kind() == Kind::ia3 ? "base_model.model.MODULE.ia3_l"
                                        : "prompt_embeddings");
    found.whole[name.substr(kPeftPrefix.size())] = &tensor;
  }
  for (const format::UnsupportedTensor& tensor : file.unsupported())
    fail(ErrorKind::file, file.file(), "tensor {} has type {}; expected a floating-point type",
         format::in_quotes(tensor.name), tensor.type);
  if (config.kind() == Kind::lora)
    for (const auto& [module, product] : found.modules) {
      if (product.a == nullptr || product.b == nullptr)
        fail(ErrorKind::file, file.file(), "module {} has no {}; expected both", module,
             product.a == nullptr ? "lora_A" : "lora_B");
      if (product.a->shape[0] < 1 || product.a->shape[0] != product.b->shape[1])
        fail(ErrorKind::file, file.file(),
             "module {} has lora_A {} and lora_B {}; expected one rank of at least 1", module,
             format::shape_text(product.a->shape), format::shape_text(product.b->shape));
      if (config.dora() != (product.magnitude != nullptr))
        fail(ErrorKind::file, file.file(),
             "module {} has {} lora_magnitude_vector, with use_dora {}", module,
             config.dora() ? "no" : "a", config.dora());
    }
  if (found.modules.empty() && found.whole.empty() && found.vectors == nullptr)
    fail(ErrorKind::file, file.file(), "holds no tensor of an adapter");
  return found;
}

/// Matrices of the layers that an adapter may stand beside, and their shapes.
std::map<std::string, Shape> matrices_of(const Checkpoint& base) {
  std::map<std::string, Shape> out;
  for (const spec::ParamDecl& decl : model::parameters(base.spec))
    if (decl.adapts() && decl.shape.size() == 2 && decl.name.find("layers.") != std::string::npos)
      out[decl.name] = decl.shape;
  return out;
}

const Family& family_of(const Checkpoint& base, FamilySet& families) {
  if (base.family.empty())
    fail(
        ErrorKind::usage, "adapter",
        "this model does not know its family, by whose names PEFT keeps adapters; expected a model "
        "that came from a Hugging Face folder or a GGUF file");
  return families.named(base.family);
}

std::string module_of(const std::string& tensor) {
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

/// Throws Error(kind) unless the product beside the rule's one foreign matrix is one beside ours.
void check_rule(const BoundRule& rule,
                const std::map<std::string, Shape>& matrices,
                const std::string& module,
                ErrorKind kind,
                const std::string& where) {
  for (const std::string& name : rule.ours)
    if (!matrices.contains(name))
      fail(kind, where, "module {} is {} here; expected one that is a matrix of the layers", module,
           name);
  if (rule.foreign.size() != 1)
    fail(kind, where,
         "module {} is one of {} that {} is made of; expected one that is a matrix here", module,
         rule.foreign.size(), rule.ours.front());
  if (!rule.steps.move_rows())
    fail(kind, where,
         "module {} is stored in another form than {}, by more than moves of rows; no adapter "
         "beside it can be read or written",
         module, fmt::join(rule.ours, ", "));
}

TensorView owned(std::string name, Shape shape, std::vector<float> numbers) {
  const auto kept = std::make_shared<const std::vector<float>>(std::move(numbers));
  return {std::move(name), DType::f32, std::move(shape), std::as_bytes(std::span(*kept)), kept};
}

std::span<const float> numbers_of(const TensorView& f32) {
  return {reinterpret_cast<const float*>(f32.data.data()), f32.data.size() / sizeof(float)};
}

bool same_bytes(const TensorView& x, const TensorView& y) {
  return x.shape == y.shape && x.data.size() == y.data.size() &&
         std::memcmp(x.data.data(), y.data.data(), x.data.size()) == 0;
}

/// The product of one foreign matrix, from those of ours that it is joined of: B in the order and
/// form of our rows.
struct Joined {
  TensorView a;
  std::vector<TensorView> b;
  double scale = 1;
};

Joined join_products(const std::vector<const AdapterTensors*>& parts,
                     const std::vector<int64_t>& rows) {
  const AdapterTensors* first = nullptr;
  bool one = true, even = true;
  for (const AdapterTensors* part : parts) {
    if (part != nullptr && first == nullptr) first = part;
    even = even && (part == nullptr || part->scale == first->scale);
    one = one && part != nullptr && same_bytes(part->parts.at(kLoraA), first->parts.at(kLoraA));
  }
  Joined out{as_float32(first->parts.at(kLoraA)), {}, even ? first->scale : 1};
  one = one && even;
  if (one) {
    for (const AdapterTensors* part : parts) out.b.push_back(as_float32(part->parts.at(kLoraB)));
    return out;
  }
  int64_t rank = 0;
  std::vector<float> a;
  for (const AdapterTensors* part : parts) {
    if (part == nullptr) continue;
    const TensorView more = as_float32(part->parts.at(kLoraA));
    a.insert(a.end(), numbers_of(more).begin(), numbers_of(more).end());
    rank += more.shape[0];
  }
  out.a = owned("lora_A", {rank, out.a.shape[1]}, std::move(a));
  int64_t column = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<float> b(static_cast<size_t>(rows[i] * rank), 0.0F);
    if (parts[i] != nullptr) {
      const TensorView own = as_float32(parts[i]->parts.at(kLoraB));
      const int64_t r = own.shape[1];
      const auto factor = static_cast<float>(even ? 1 : parts[i]->scale);
      for (int64_t o = 0; o < rows[i]; ++o)
        for (int64_t k = 0; k < r; ++k)
          b[static_cast<size_t>(o * rank + column + k)] =
              factor * numbers_of(own)[static_cast<size_t>(o * r + k)];
      column += r;
    }
    out.b.push_back(owned("lora_B", {rows[i], rank}, std::move(b)));
  }
  return out;
}

/// The shortest ends of module names that name all of `adapted` and none of `others`.
std::set<std::string> ends_of(const std::vector<std::string>& adapted,
                              const std::vector<std::string>& others) {
  std::set<std::string> out;
  for (const std::string& module : adapted) {
    std::string end = module;
    for (size_t dot = module.rfind('.'); dot != std::string::npos && dot > 0;
         dot = module.rfind('.', dot - 1)) {
      const std::string_view tail = std::string_view(module).substr(dot);  // ".q_proj"
      if (std::none_of(others.begin(), others.end(),
                       [&](const std::string& other) { return other.ends_with(tail); })) {
        end = tail.substr(1);
        break;
      }
    }
    out.insert(end);
  }
  return out;
}

Json whole_where_it_is(double x) {
  return x == std::floor(x) && std::abs(x) < 1e9 ? Json(static_cast<int64_t>(x)) : Json(x);
}

/// Rows of a foreign matrix [O, C], as ours.
std::vector<TensorView> rows_as_ours(const BoundRule& rule, const TensorView& whole) {
  std::vector<TensorView> parts = {rule.steps.transpose() ? transposed(whole, kTurn) : whole};
  rule.apply(parts);
  return parts;
}

/// The way back.
TensorView rows_as_theirs(const BoundRule& rule, std::vector<TensorView> parts) {
  rule.invert(parts);
  return rule.steps.transpose() ? transposed(parts.at(0), kTurn) : parts.at(0);
}

TensorView shaped(TensorView view, Shape shape) {
  view.shape = std::move(shape);
  return view;
}

/// A vector as a matrix of one column, and back.
TensorView as_column(const TensorView& vector) {
  int64_t n = 1;
  for (const int64_t size : vector.shape) n *= size;
  return shaped(as_float32(vector), {n, 1});
}
TensorView as_vector(const TensorView& column) {
  return shaped(column, {column.shape[0] * column.shape[1]});
}

std::vector<int64_t> rows_of(const BoundRule& rule, const std::map<std::string, Shape>& matrices) {
  std::vector<int64_t> rows;
  for (const std::string& name : rule.ours) rows.push_back(matrices.at(name)[0]);
  return rows;
}

int64_t sum_of(const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

[[noreturn]] void of_another_model(const fs::path& folder,
                                   const std::string& what,
                                   const std::string& module,
                                   const Shape& here) {
  fail(ErrorKind::usage, "adapter", "{} is of another model: {} of {}, which is {} here",
       folder.string(), what, module, format::shape_text(here));
}

/// What a family calls the keys and values of a layer: which of the foreign rows, by order among
/// their own, each of our rows is.
std::vector<int64_t> order_of_rows(const BoundRule& rule,
                                   const std::map<std::string, Shape>& matrices,
                                   size_t which) {
  const std::vector<int64_t> rows = rows_of(rule, matrices);
  std::vector<float> numbers(static_cast<size_t>(sum_of(rows)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const auto n = static_cast<int64_t>(numbers.size());
  const TensorView part = rows_as_ours(rule, owned("rows", {n, 1}, std::move(numbers))).at(which);
  std::vector<std::pair<float, int64_t>> found;
  for (int64_t i = 0; i < rows[which]; ++i)
    found.emplace_back(numbers_of(part)[static_cast<size_t>(i)], i);
  std::sort(found.begin(), found.end());
  std::vector<int64_t> order(found.size());
  for (size_t rank = 0; rank < found.size(); ++rank)
    order[static_cast<size_t>(found[rank].second)] = static_cast<int64_t>(rank);
  return order;
}

/// Keys and values of the layers, in the order in which PEFT stacks them, with the rule that gives
/// each and its place among the rule's own.
struct CacheSlot {
  std::string weight;
  std::vector<int64_t> order;  // theirs, of each row of ours
};

std::vector<CacheSlot> cache_slots(const Family& family, const Checkpoint& base) {
  const std::map<std::string, Shape> matrices = matrices_of(base);
  const std::vector<std::string> names = model::key_value_weights(base.spec);
  if (const std::string reason = model::no_virtual_reason(base.spec, true); !reason.empty())
    fail(ErrorKind::usage, "adapter", "a prefix: {}", reason);
  if (names.size() != 2 * base.spec.layers.size())
    fail(ErrorKind::usage, "adapter",
         "{} keys and values of their own in {} layers, and PEFT keeps two of every layer",
         names.size(), base.spec.layers.size());
  std::map<std::string, std::vector<int64_t>> orders;
  for_each_rule(family, "hf", base, [&](const BoundRule& rule) {
    for (size_t i = 0; i < rule.ours.size(); ++i)
      if (std::find(names.begin(), names.end(), rule.ours[i]) != names.end()) {
        check_rule(rule, matrices, module_of(rule.foreign.front()), ErrorKind::usage, "adapter");
        orders[rule.ours[i]] = order_of_rows(rule, matrices, i);
      }
  });
  std::vector<CacheSlot> slots;
  for (const std::string& name : names) {
    const auto found = orders.find(name);
    if (found == orders.end())
      fail(ErrorKind::usage, "adapter", "{} has no name in files of family {}", name, base.family);
    slots.push_back({name, found->second});
    if (slots.front().order.size() != slots.back().order.size())
      fail(ErrorKind::usage, "adapter", "{} has {} numbers, {} has {}, and PEFT keeps one width",
           slots.front().weight, slots.front().order.size(), name, slots.back().order.size());
  }
  return slots;
}

/// Rows of virtual tokens: of a prompt as they lie there, of a prefix [M, slots w] cut by slots.
std::vector<AdapterTensors> read_virtual(const TensorView& vectors,
                                         const PeftConfig& config,
                                         const Family& family,
                                         const Checkpoint& base,
                                         const fs::path& folder) {
  const int64_t tokens = vectors.shape[0], width = vectors.shape[1];
  if (config.kind() == Kind::prompt) {
    if (width != base.spec.d_model)
      of_another_model(folder, fmt::format("vectors of {} numbers", width), "a prompt",
                       Shape{tokens, base.spec.d_model});
    return {{.weight = model::kTokenTable, .parts = {{kVirtual, as_float32(vectors)}}}};
  }
  const std::vector<CacheSlot> slots = cache_slots(family, base);
  const auto own = static_cast<int64_t>(slots.front().order.size());
  if (width != own * std::ssize(slots))
    of_another_model(folder, fmt::format("{} numbers a token", width), "a prefix",
                     Shape{tokens, own * std::ssize(slots)});
  const TensorView all = as_float32(vectors);
  std::vector<AdapterTensors> out;
  for (size_t s = 0; s < slots.size(); ++s) {
    std::vector<float> rows(static_cast<size_t>(tokens * own));
    for (int64_t m = 0; m < tokens; ++m)
      for (int64_t i = 0; i < own; ++i)
        rows[static_cast<size_t>(m * own + i)] = numbers_of(all)[static_cast<size_t>(
            m * width + static_cast<int64_t>(s) * own + slots[s].order[static_cast<size_t>(i)])];
    out.push_back({.weight = slots[s].weight,
                   .parts = {{kVirtual, owned(kVirtual, {tokens, own}, std::move(rows))}}});
  }
  return out;
}

/// What stands beside one foreign module, as ours.
std::vector<AdapterTensors> read_module(const std::string& module,
                                        const Beside& beside,
                                        const PeftConfig& config,
                                        const BoundRule& rule,
                                        const std::map<std::string, Shape>& matrices,
                                        const fs::path& folder) {
  const int64_t rows = sum_of(rows_of(rule, matrices)), columns = matrices.at(rule.ours[0])[1];
  std::vector<AdapterTensors> out;
  for (const std::string& name : rule.ours) out.push_back({.weight = name});
  const auto share = [&](const char* part, const TensorView& column) {
    const std::vector<TensorView> parts = rows_as_ours(rule, column);
    for (size_t i = 0; i < out.size(); ++i) out[i].parts[part] = as_vector(parts.at(i));
  };
  if (beside.factors != nullptr) {
    const Shape& shape = beside.factors->shape;
    if (shape == Shape{rows, 1}) {
      share(kOut, as_column(*beside.factors));
    } else if (shape == Shape{1, columns}) {
      for (AdapterTensors& one : out) one.parts[kIn] = as_vector(as_column(*beside.factors));
    } else {
      of_another_model(folder, "ia3_l " + format::shape_text(shape), module, Shape{rows, columns});
    }
    return out;
  }
  const Shape &a = beside.a->shape, &b = beside.b->shape;
  if (a[1] != columns || b[0] != rows)
    of_another_model(
        folder,
        fmt::format("lora_A {} and lora_B {}", format::shape_text(a), format::shape_text(b)),
        module, Shape{rows, columns});
  const std::vector<TensorView> ups = rows_as_ours(rule, as_float32(*beside.b));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].parts[kLoraA] = as_float32(*beside.a);
    out[i].parts[kLoraB] = ups.at(i);
    out[i].scale = config.scale_of(module, a[0]);
    out[i].by_root = config.by_root();
  }
  if (beside.magnitude == nullptr) return out;
  if (beside.magnitude->shape[0] != rows)
    of_another_model(folder, fmt::format("{} magnitudes", beside.magnitude->shape[0]), module,
                     Shape{rows, columns});
  share(kLengths, as_column(*beside.magnitude));
  return out;
}

/// A tensor that was trained whole, as ours.
void read_whole(const TensorView& tensor,
                const BoundRule& rule,
                const std::string& file,
                std::vector<AdapterTensors>& out) {
  if (rule.foreign.size() != 1)
    fail(ErrorKind::file, file, "{} is one of {} that {} is made of; expected a whole one",
         rule.foreign.front(), rule.foreign.size(), rule.ours.front());
  std::vector<TensorView> parts = {as_float32(tensor)};
  rule.apply(parts);
  for (size_t i = 0; i < rule.ours.size(); ++i)
    out.push_back({.weight = rule.ours[i], .parts = {{kWholePart, as_float32(parts.at(i))}}});
}

}  // namespace

std::vector<AdapterTensors> read_peft(const fs::path& folder,
                                      const Checkpoint& base,
                                      const LoadOptions& options) {
  const PeftConfig config(folder / kPeftConfig);
  const format::TensorFile file = format::open_safetensors(folder / kPeftTensors);
  Found found = tensors_of(file, config);
  FamilySet families = FamilySet::load(options.families);
  const Family& family = family_of(base, families);
  const std::map<std::string, Shape> matrices = matrices_of(base);
  std::vector<AdapterTensors> out;
  if (found.vectors != nullptr) out = read_virtual(*found.vectors, config, family, base, folder);
  for_each_rule(family, "hf", base, [&](const BoundRule& rule) {
    for (const std::string& name : rule.foreign) {
      if (const auto whole = found.whole.find(name); whole != found.whole.end()) {
        read_whole(*whole->second, rule, file.file(), out);
        found.whole.erase(whole);
        return;
      }
      const auto beside =
          name.ends_with(kWeight) ? found.modules.find(module_of(name)) : found.modules.end();
      if (beside == found.modules.end()) continue;
      check_rule(rule, matrices, beside->first, ErrorKind::file, file.file());
      for (AdapterTensors& one :
           read_module(beside->first, beside->second, config, rule, matrices, folder))
        out.push_back(std::move(one));
      found.modules.erase(beside);
      return;
    }
  });
  if (!found.modules.empty() || !found.whole.empty())
    fail(ErrorKind::usage, "adapter",
         "{} is of another model: {} {} has no place in this one, of family {}", folder.string(),
         found.modules.empty() ? "tensor" : "module",
         found.modules.empty() ? found.whole.begin()->first : found.modules.begin()->first,
         base.family);
  return out;
}

namespace {

/// An adapter on its way into the files.
class PeftWriter {
 public:
  PeftWriter(const std::vector<AdapterTensors>& adapter,
             const Checkpoint& base,
             const Family& family)
      : base_(base), family_(family), matrices_(matrices_of(base)) {
    for (const AdapterTensors& one : adapter) left_[one.weight] = &one;
    const auto any = [&](const char* part) {
      return std::any_of(adapter.begin(), adapter.end(),
                         [&](const AdapterTensors& one) { return one.parts.contains(part); });
    };
    const bool product = any(kLoraA), factors = any(kOut) || any(kIn), vectors = any(kVirtual);
    if (product + factors + vectors > 1)
      fail(ErrorKind::usage, "adapter",
           "holds adapters of several kinds, and a folder of PEFT holds one; export them apart");
    kind_ = factors    ? Kind::ia3
            : !vectors ? Kind::lora
            : left_.contains(model::kTokenTable) &&
                    left_.at(model::kTokenTable)->parts.contains(kVirtual)
                ? Kind::prompt
                : Kind::prefix;
    dora_ = any(kLengths);
  }

  void write(const fs::path& folder) {
    if (kind_ == Kind::prompt) add_prompt();
    if (kind_ == Kind::prefix) add_prefix();
    for_each_rule(family_, "hf", base_, [&](const BoundRule& rule) { add(rule); });
    if (!left_.empty())
      fail(ErrorKind::usage, "adapter", "{} has no name in files of family {}",
           left_.begin()->first, base_.family);
    if (tensors_.empty() || (kind_ == Kind::lora && sizes_.empty()))
      fail(ErrorKind::usage, "adapter", "holds no {} to write",
           tensors_.empty() ? "tensor" : "product");
    const std::string about = config().dump(2) + "\n";
    create_folder(folder);
    format::write_safetensors(folder / kPeftTensors, tensors_, {{"format", "pt"}});
    write_file_atomically(folder / kPeftConfig, about);
  }

 private:
  void push(TensorView view, const std::string& module, std::string_view end) {
    view.name = std::string(kPeftPrefix) + module + std::string(end);
    tensors_.push_back(std::move(view));
  }

  void add_prompt() {
    const AdapterTensors& one = *left_.at(model::kTokenTable);
    TensorView vectors = as_float32(one.parts.at(kVirtual));
    tokens_ = vectors.shape[0];
    width_ = vectors.shape[1];
    vectors.name = kVectors;
    tensors_.push_back(std::move(vectors));
    left_.erase(model::kTokenTable);
  }

  void add_prefix() {
    const std::vector<CacheSlot> slots = cache_slots(family_, base_);
    width_ = static_cast<int64_t>(slots.front().order.size());
    std::vector<float> all;
    for (size_t s = 0; s < slots.size(); ++s) {
      const auto found = left_.find(slots[s].weight);
      if (found == left_.end())
        fail(ErrorKind::usage, "adapter", "a prefix without {}", slots[s].weight);
      const TensorView own = as_float32(found->second->parts.at(kVirtual));
      tokens_ = own.shape[0];
      const int64_t stride = width_ * std::ssize(slots);
      all.resize(static_cast<size_t>(tokens_ * stride));
      for (int64_t m = 0; m < tokens_; ++m)
        for (int64_t i = 0; i < width_; ++i)
          all[static_cast<size_t>(m * stride + static_cast<int64_t>(s) * width_ +
                                  slots[s].order[static_cast<size_t>(i)])] =
              numbers_of(own)[static_cast<size_t>(m * width_ + i)];
      left_.erase(found);
    }
    tensors_.push_back(
        owned(std::string(kVectors), {tokens_, width_ * std::ssize(slots)}, std::move(all)));
  }

  void add(const BoundRule& rule) {
    std::vector<const AdapterTensors*> parts;
    bool any = false, whole = true;
    for (const std::string& name : rule.ours) {
      const auto found = left_.find(name);
      parts.push_back(found == left_.end() ? nullptr : found->second);
      any = any || parts.back() != nullptr;
      whole = whole && parts.back() != nullptr && parts.back()->parts.contains(kWholePart);
    }
    const std::string module = module_of(rule.foreign.front());
    if (!any) {
      others_.push_back(module);
      return;
    }
    if (whole) {
      add_whole(rule, parts);
    } else {
      check_rule(rule, matrices_, module, ErrorKind::usage, "adapter");
      for (const AdapterTensors* part : parts)
        if (part != nullptr && part->parts.contains(kWholePart))
          fail(ErrorKind::usage, "adapter",
               "{} is trained whole, and others that are one matrix with it in {} are not",
               part->weight, module);
      turned_ = turned_ || rule.steps.transpose();
      kind_ == Kind::ia3 ? add_factors(rule, parts, module) : add_product(rule, parts, module);
    }
    for (const std::string& name : rule.ours) left_.erase(name);
  }

  void add_whole(const BoundRule& rule, const std::vector<const AdapterTensors*>& parts) {
    std::vector<TensorView> tensors;
    for (const AdapterTensors* part : parts)
      tensors.push_back(as_float32(part->parts.at(kWholePart)));
    rule.invert(tensors);
    require(tensors.size() == 1, "adapter", "{} tensors of {}", tensors.size(),
            rule.foreign.front());
    push(std::move(tensors.front()), rule.foreign.front(), "");
    const std::string& name = rule.foreign.front();
    saved_.insert(name.substr(0, name.rfind('.')));
  }

  void add_product(const BoundRule& rule,
                   const std::vector<const AdapterTensors*>& parts,
                   const std::string& module) {
    const std::vector<int64_t> rows = rows_of(rule, matrices_);
    Joined product = join_products(parts, rows);
    push(std::move(product.a), module, kA);
    const int64_t rank = tensors_.back().shape[0];
    push(rows_as_theirs(rule, std::move(product.b)), module, kB);
    if (dora_) {
      std::vector<TensorView> lengths;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] == nullptr || !parts[i]->parts.contains(kLengths))
          fail(
              ErrorKind::usage, "adapter",
              "{} has no magnitudes, and others that are one matrix with it in {} have; PEFT keeps "
              "them of whole matrices",
              rule.ours[i], module);
        lengths.push_back(as_column(parts[i]->parts.at(kLengths)));
      }
      push(as_vector(rows_as_theirs(rule, std::move(lengths))), module, kMagnitude);
    }
    for (const AdapterTensors* part : parts)
      by_root_ = by_root_ && (part == nullptr || part->by_root);
    adapted_.push_back(module);
    sizes_.push_back({rank, product.scale});
  }

  void add_factors(const BoundRule& rule,
                   const std::vector<const AdapterTensors*>& parts,
                   const std::string& module) {
    const std::vector<int64_t> rows = rows_of(rule, matrices_);
    std::vector<TensorView> outs;
    const TensorView* in = nullptr;
    bool any_out = false, any_in = false, every_in = true;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto found = [&](const char* name) -> const TensorView* {
        if (parts[i] == nullptr) return nullptr;
        const auto part = parts[i]->parts.find(name);
        return part == parts[i]->parts.end() ? nullptr : &part->second;
      };
      const TensorView *out = found(kOut), *own = found(kIn);
      any_out = any_out || out != nullptr;
      any_in = any_in || own != nullptr;
      every_in = every_in && own != nullptr && (in == nullptr || same_bytes(*in, *own));
      if (own != nullptr) in = own;
      outs.push_back(out != nullptr
                         ? as_column(*out)
                         : owned("ones", {rows[i], 1},
                                 std::vector<float>(static_cast<size_t>(rows[i]), 1.0F)));
    }
    if (any_in && (any_out || !every_in))
      fail(ErrorKind::usage, "adapter",
           "module {} has {}; PEFT keeps one vector of factors beside a module", module,
           any_out ? "factors on what it reads and on what it gives"
                   : "parts with other factors on what they read");
    if (any_in) {
      const TensorView column = as_column(*in);
      push(shaped(column, {1, column.shape[0]}), module, kFactors);
      inputs_.push_back(module);
    } else {
      const TensorView column = rows_as_theirs(rule, std::move(outs));
      push(shaped(column, {column.shape[0] * column.shape[1], 1}), module, kFactors);
      adapted_.push_back(module);
    }
  }

  Json config() const {
    const char* task = base_.spec.encoder    ? "SEQ_2_SEQ_LM"
                       : base_.spec.causal() ? "CAUSAL_LM"
                                             : nullptr;
    Json config = {{"task_type", task != nullptr && base_.spec.head ? Json(task) : Json()},
                   {"base_model_name_or_path", nullptr},
                   {"inference_mode", true}};
    if (!saved_.empty()) config["modules_to_save"] = saved_;
    const auto join = [](std::vector<std::string> a, const std::vector<std::string>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    if (kind_ == Kind::lora) {
      config.update(products());
      config["fan_in_fan_out"] = turned_;
      config["target_modules"] = ends_of(adapted_, others_);
    } else if (kind_ == Kind::ia3) {
      const std::set<std::string> in = ends_of(inputs_, join(others_, adapted_));
      std::set<std::string> all = ends_of(adapted_, join(others_, inputs_));
      all.insert(in.begin(), in.end());
      config.update(Json{{"peft_type", "IA3"},
                         {"fan_in_fan_out", turned_},
                         {"target_modules", all},
                         {"feedforward_modules", in}});
    } else {
      config.update(virtual_tokens());
    }
    return config;
  }

  Json products() const {
    const auto alpha_of = [&](const std::pair<int64_t, double>& size) {
      const auto r = static_cast<double>(size.first);
      return size.second * (by_root_ ? std::sqrt(r) : r);
    };
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); };
    Json ranks = Json::object(), alphas = Json::object();
    for (size_t i = 0; i < adapted_.size(); ++i) {
      if (sizes_[i].first != sizes_[0].first) ranks[adapted_[i]] = sizes_[i].first;
      if (!near(alpha_of(sizes_[i]), alpha_of(sizes_[0])))
        alphas[adapted_[i]] = whole_where_it_is(alpha_of(sizes_[i]));
    }
    return {{"peft_type", "LORA"},
            {"r", sizes_[0].first},
            {"lora_alpha", whole_where_it_is(alpha_of(sizes_[0]))},
            {"lora_dropout", 0.0},
            {"use_rslora", by_root_},
            {"use_dora", dora_},
            {"bias", "none"},
            {"rank_pattern", std::move(ranks)},
            {"alpha_pattern", std::move(alphas)}};
  }

  Json virtual_tokens() const {
    Json config = {{"peft_type", kind_ == Kind::prompt ? "PROMPT_TUNING" : "PREFIX_TUNING"},
                   {"num_virtual_tokens", tokens_},
                   {"token_dim", width_},
                   {"num_layers", base_.spec.layers.size()},
                   {"num_transformer_submodules", 1}};
    const nn::AttentionConfig* attention = nullptr;
    for (const model::GroupSpec& group : base_.spec.layers.front().groups)
      for (const model::BranchSpec& branch : group.branches)
        if (attention == nullptr)
          attention = dynamic_cast<const nn::AttentionConfig*>(branch.part.config.get());
    if (kind_ == Kind::prompt) {
      config["num_attention_heads"] = attention != nullptr ? attention->n_heads : 1;
      config["prompt_tuning_init"] = "RANDOM";
    } else {
      config["num_attention_heads"] = attention->n_kv_heads;
      config["encoder_hidden_size"] = width_;
      config["prefix_projection"] = false;
    }
    return config;
  }

  const Checkpoint& base_;
  const Family& family_;
  std::map<std::string, Shape> matrices_;
  std::map<std::string, const AdapterTensors*> left_;
  Kind kind_ = Kind::lora;
  bool dora_ = false, by_root_ = true, turned_ = false;
  std::vector<TensorView> tensors_;
  std::vector<std::string> adapted_, inputs_, others_;
  std::vector<std::pair<int64_t, double>> sizes_;  // rank and scale of each product
  std::set<std::string> saved_;
  int64_t tokens_ = 0, width_ = 0;
};

}  // namespace

void write_peft(const std::vector<AdapterTensors>& adapter,
                const Checkpoint& base,
                const fs::path& folder,
                const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  PeftWriter(adapter, base, family_of(base, families)).write(folder);
}

}  // namespace tessera::convert
