#include "tessera/convert/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/mapping.h"
#include "tessera/format/file_source.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPeftPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kWeight = ".weight";
constexpr std::array<int64_t, 2> kTurn = {1, 0};

/// Keys of the config that say what the tensors say themselves, or nothing about the function.
constexpr const char* kSilent[] = {"r",
                                   "target_modules",
                                   "exclude_modules",
                                   "layers_to_transform",
                                   "layers_pattern",
                                   "task_type",
                                   "lora_dropout",
                                   "fan_in_fan_out",
                                   "inference_mode",
                                   "auto_mapping",
                                   "revision",
                                   "peft_version",
                                   "rank_pattern",
                                   "megatron_core",
                                   "qalora_group_size",
                                   "peft_type",
                                   "lora_alpha",
                                   "alpha_pattern",
                                   "use_rslora",
                                   "init_lora_weights",
                                   "base_model_name_or_path"};

/// Ways to begin that take what the adapter begins with out of the model.
constexpr std::string_view kChangedBase[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none") ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

/// How the tensors of a config count.
class Scales {
 public:
  explicit Scales(const fs::path& path) : file_(path.string()) {
    const Json config = spec::read_json_file(path);
    if (!config.is_object())
      fail(ErrorKind::file, file_, "found {}; expected an object", spec::kind_of(config));
    if (const Json type = config.value("peft_type", Json()); type != Json("LORA"))
      fail(ErrorKind::file, file_, "peft_type = {}; expected \"LORA\"", type.dump());
    const Json begin = config.value("init_lora_weights", Json());
    if (begin.is_string())
      for (const std::string_view name : kChangedBase)
        if (begin.get<std::string>().starts_with(name))
          fail(ErrorKind::file, file_,
               "init_lora_weights = {} has changed the model that the adapter stands beside; "
               "expected an adapter of the model as it is",
               begin.dump());
    for (const auto& [key, value] : config.items()) {
      const bool silent =
          std::find(std::begin(kSilent), std::end(kSilent), key) != std::end(kSilent);
      if (!silent && !says_nothing(value))
        fail(ErrorKind::file, file_, "{} = {} is not supported; expected LoRA without it", key,
             shown(value));
    }
    alpha_ = number(config, "lora_alpha");
    by_root_ = config.value("use_rslora", Json(false)) == Json(true);
    patterns_ = config.value("alpha_pattern", Json::object());
    if (patterns_.is_null()) patterns_ = Json::object();
    if (!patterns_.is_object())
      fail(ErrorKind::file, file_, "alpha_pattern is {}; expected an object",
           spec::kind_of(patterns_));
    for (const auto& [name, value] : patterns_.items())
      if (name.find_first_of("*+?()[]{}|^$\\") != std::string::npos)
        fail(ErrorKind::file, file_,
             "alpha_pattern \"{}\" is an expression; expected the names of modules, or their ends",
             name);
  }

  /// On the product of a module, whose rank is `rank`.
  double of(const std::string& module, int64_t rank) const {
    std::optional<double> special;
    for (const auto& [name, value] : patterns_.items()) {
      if (module != name && !module.ends_with("." + name)) continue;
      // PEFT takes the first, and an object has no order to rely on
      if (special && *special != number(patterns_, name))
        fail(ErrorKind::file, file_, "alpha_pattern has several values for module {}", module);
      special = number(patterns_, name);
    }
    const double alpha = special.value_or(alpha_);
    const auto r = static_cast<double>(rank);
    return alpha / (by_root_ ? std::sqrt(r) : r);
  }

 private:
  double number(const Json& of, const std::string& key) const {
    const auto found = of.find(key);
    if (found == of.end() || !found->is_number())
      fail(ErrorKind::file, file_, "{} is {}; expected a number", key,
           found == of.end() ? "missing" : spec::kind_of(*found));
    return found->get<double>();
  }

  std::string file_;
  double alpha_ = 0;
  bool by_root_ = false;
  Json patterns_;
};

/// The two matrices of a module.
struct Product {
  const TensorView *a = nullptr, *b = nullptr;
};

std::map<std::string, Product> products_of(const format::TensorFile& file) {
  std::map<std::string, Product> products;
  for (const TensorView& tensor : file.tensors()) {
    const std::string& name = tensor.name;
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (!name.starts_with(kPeftPrefix) || !(is_a || is_b) ||
        name.size() <= kPeftPrefix.size() + kA.size())
      fail(ErrorKind::file, file.file(),
           "tensor {} is not supported; expected names {}MODULE.lora_A.weight and .lora_B.weight",
           format::in_quotes(name), kPeftPrefix);
    if (tensor.shape.size() != 2)
      fail(ErrorKind::file, file.file(), "tensor {} has shape {}; expected two axes",
           format::in_quotes(name), format::shape_text(tensor.shape));
    const std::string module =
        name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - kA.size());
    (is_a ? products[module].a : products[module].b) = &tensor;
  }
  for (const format::UnsupportedTensor& tensor : file.unsupported())
    fail(ErrorKind::file, file.file(), "tensor {} has type {}; expected a floating-point type",
         format::in_quotes(tensor.name), tensor.type);
  for (const auto& [module, product] : products) {
    if (product.a == nullptr || product.b == nullptr)
      fail(ErrorKind::file, file.file(), "module {} has no {}; expected both", module,
           product.a == nullptr ? "lora_A" : "lora_B");
    if (product.a->shape[0] < 1 || product.a->shape[0] != product.b->shape[1])
      fail(ErrorKind::file, file.file(),
           "module {} has lora_A {} and lora_B {}; expected one rank of at least 1", module,
           format::shape_text(product.a->shape), format::shape_text(product.b->shape));
  }
  if (products.empty()) fail(ErrorKind::file, file.file(), "holds no tensor of an adapter");
  return products;
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
    one = one && part != nullptr && same_bytes(part->a, first->a);
  }
  Joined out{as_float32(first->a), {}, even ? first->scale : 1};
  one = one && even;
  if (one) {
    for (const AdapterTensors* part : parts) out.b.push_back(as_float32(part->b));
    return out;
  }
  int64_t rank = 0;
  std::vector<float> a;
  for (const AdapterTensors* part : parts) {
    if (part == nullptr) continue;
    const TensorView more = as_float32(part->a);
    a.insert(a.end(), numbers_of(more).begin(), numbers_of(more).end());
    rank += part->a.shape[0];
  }
  out.a = owned("lora_A", {rank, first->a.shape[1]}, std::move(a));
  int64_t column = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<float> b(static_cast<size_t>(rows[i] * rank), 0.0F);
    if (parts[i] != nullptr) {
      const TensorView own = as_float32(parts[i]->b);
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

}  // namespace

std::vector<AdapterTensors> read_peft(const fs::path& folder,
                                      const Checkpoint& base,
                                      const LoadOptions& options) {
  const Scales scales(folder / kPeftConfig);
  const format::TensorFile file = format::open_safetensors(folder / kPeftTensors);
  std::map<std::string, Product> products = products_of(file);
  FamilySet families = FamilySet::load(options.families);
  const Family& family = family_of(base, families);
  const std::map<std::string, Shape> matrices = matrices_of(base);
  std::vector<AdapterTensors> out;
  for_each_rule(family, "hf", base, [&](const BoundRule& rule) {
    for (const std::string& name : rule.foreign) {
      const auto found = name.ends_with(kWeight) ? products.find(module_of(name)) : products.end();
      if (found == products.end()) continue;
      const auto& [module, product] = *found;
      check_rule(rule, matrices, module, ErrorKind::file, file.file());
      int64_t rows = 0;
      for (const std::string& ours : rule.ours) rows += matrices.at(ours)[0];
      const Shape &a = product.a->shape, &b = product.b->shape, &first = matrices.at(rule.ours[0]);
      if (a[1] != first[1] || b[0] != rows)
        fail(ErrorKind::usage, "adapter",
             "{} is of another model: lora_A {} and lora_B {} of {}, which is {} here",
             folder.string(), format::shape_text(a), format::shape_text(b), module,
             format::shape_text(Shape{rows, first[1]}));
      const TensorView whole = as_float32(*product.b);
      std::vector<TensorView> parts = {rule.steps.transpose() ? transposed(whole, kTurn) : whole};
      rule.apply(parts);
      for (size_t i = 0; i < rule.ours.size(); ++i)
        out.push_back({rule.ours[i], as_float32(*product.a), parts.at(i), scales.of(module, a[0])});
      products.erase(found);
      return;
    }
  });
  if (!products.empty())
    fail(ErrorKind::usage, "adapter",
         "{} is of another model: module {} has no place in this one, of family {}",
         folder.string(), products.begin()->first, base.family);
  return out;
}

void write_peft(const std::vector<AdapterTensors>& adapter,
                const Checkpoint& base,
                const fs::path& folder,
                const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  const Family& family = family_of(base, families);
  const std::map<std::string, Shape> matrices = matrices_of(base);
  std::map<std::string, const AdapterTensors*> left;
  for (const AdapterTensors& one : adapter) left[one.weight] = &one;

  std::vector<TensorView> tensors;
  std::vector<std::string> adapted, others;
  std::vector<std::pair<int64_t, double>> sizes;  // rank and alpha of each that is adapted
  bool turned = false;
  for_each_rule(family, "hf", base, [&](const BoundRule& rule) {
    std::vector<const AdapterTensors*> parts;
    bool any = false;
    for (const std::string& name : rule.ours) {
      const auto found = left.find(name);
      parts.push_back(found == left.end() ? nullptr : found->second);
      any = any || parts.back() != nullptr;
    }
    const std::string module = module_of(rule.foreign.front());
    if (!any) {
      others.push_back(module);
      return;
    }
    check_rule(rule, matrices, module, ErrorKind::usage, "adapter");
    std::vector<int64_t> rows;
    for (const std::string& name : rule.ours) {
      rows.push_back(matrices.at(name)[0]);
      left.erase(name);
    }
    Joined product = join_products(parts, rows);
    rule.invert(product.b);
    TensorView b = product.b.at(0);
    if (rule.steps.transpose()) b = transposed(b, kTurn);
    turned = turned || rule.steps.transpose();
    product.a.name = std::string(kPeftPrefix) + module + std::string(kA);
    b.name = std::string(kPeftPrefix) + module + std::string(kB);
    adapted.push_back(module);
    sizes.emplace_back(product.a.shape[0], product.scale * static_cast<double>(product.a.shape[0]));
    tensors.push_back(std::move(product.a));
    tensors.push_back(std::move(b));
  });
  if (!left.empty())
    fail(ErrorKind::usage, "adapter", "{} has no name in files of family {}", left.begin()->first,
         base.family);
  if (adapted.empty()) fail(ErrorKind::usage, "adapter", "holds no product to write");

  Json ranks = Json::object(), alphas = Json::object();
  for (size_t i = 0; i < adapted.size(); ++i) {
    if (sizes[i].first != sizes[0].first) ranks[adapted[i]] = sizes[i].first;
    if (sizes[i].second != sizes[0].second) alphas[adapted[i]] = whole_where_it_is(sizes[i].second);
  }
  const char* task = base.spec.encoder    ? "SEQ_2_SEQ_LM"
                     : base.spec.causal() ? "CAUSAL_LM"
                                          : nullptr;
  const Json config = {{"peft_type", "LORA"},
                       {"task_type", task != nullptr && base.spec.head ? Json(task) : Json()},
                       {"base_model_name_or_path", nullptr},
                       {"inference_mode", true},
                       {"r", sizes[0].first},
                       {"lora_alpha", whole_where_it_is(sizes[0].second)},
                       {"lora_dropout", 0.0},
                       {"use_rslora", false},
                       {"fan_in_fan_out", turned},
                       {"bias", "none"},
                       {"target_modules", ends_of(adapted, others)},
                       {"rank_pattern", std::move(ranks)},
                       {"alpha_pattern", std::move(alphas)}};
  create_folder(folder);
  format::write_safetensors(folder / kPeftTensors, tensors, {{"format", "pt"}});
  write_file_atomically(folder / kPeftConfig, config.dump(2) + "\n");
}

}  // namespace tessera::convert
