#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/convert/peft_experts.h"
#include "tessera/convert/peft_names.h"
#include "tessera/convert/peft_targets.h"

namespace tessera::convert::peft {
namespace {

namespace fs = std::filesystem;
/// A family's value: rows of gates and of the way up take turns in its packed experts.
constexpr const char* kExpertRows = "expert_rows";

/// Rows of virtual tokens: of a prompt as they lie there, of a prefix [M, slots w] cut by slots.
std::vector<AdapterTensors> read_virtual(const TensorView& vectors,
                                         const PeftConfig& config,
                                         const Family& family,
                                         const Checkpoint& base,
                                         const fs::path& folder) {
  const int64_t tokens = vectors.shape[0], width = vectors.shape[1];
  if (config.kind() == PeftKind::prompt) {
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

class PeftReader {
 public:
  PeftReader(const fs::path& folder, const Checkpoint& base, FamilySet& families)
      : folder_(folder),
        base_(base),
        config_(folder / kPeftConfig),
        file_(open_peft_tensors(folder)),
        family_(family_of(base, families)),
        names_(family_, base),
        matrices_(matrices_of(base)),
        stacks_(stacks_of(base)) {}

  std::vector<AdapterTensors> read() {
    PeftFile file = read_peft_file(file_, config_);
    check_targets(file, config_, file_.file(), module_of(names_.head()));
    found_ = renamed(std::move(file), names_);
    if (found_.vectors != nullptr)
      out_ = read_virtual(*found_.vectors, config_, family_, base_, folder_);
    if (names_.tied()) join_tied();
    take_biases();
    for_each_rule(family_, "hf", base_, [&](const BoundRule& rule) { read_rule(rule); });
    read_packed();
    check_all_placed();
    return std::move(out_);
  }

 private:
  /// The output matrix is another name of the table, of which the adapter makes one
  /// (peft_base() has given a model that is to have two a matrix of its own).
  void join_tied() {
    if (const auto head = found_.whole.find(names_.head()); head != found_.whole.end()) {
      found_.whole.emplace(names_.table(), head->second);
      found_.whole.erase(names_.head());
    }
    const auto head = found_.modules.find(module_of(names_.head()));
    if (head == found_.modules.end() || head->second.tokens == nullptr) return;
    head->second.tokens = nullptr;
    if (head->second.a == nullptr) found_.modules.erase(head);
  }

  /// Biases of products, by the names of the biases that they change.
  void take_biases() {
    for (auto& [module, parts] : found_.modules) {
      if (parts.bias == nullptr) continue;
      biases_[module + std::string(kBias)] = {parts.bias,
                                              config_.scale_of(module, parts.a->shape[0])};
      parts.bias = nullptr;
    }
  }

  void read_rule(const BoundRule& rule) {
    for (const std::string& name : rule.foreign) read_whole(name, rule);
    if (const auto stack = stacks_.find(rule.ours.front()); stack != stacks_.end()) {
      const bool each = rule.foreign.size() > 1 && rule.ours.size() == 1;
      if (each && std::any_of(rule.foreign.begin(), rule.foreign.end(), [&](const auto& name) {
            return found_.modules.contains(module_of(name));
          }))
        out_.push_back(
            read_each_expert(rule, stack->second, config_, file_.file(), found_.modules));
      return;
    }
    for (const std::string& name : rule.foreign) {
      const auto module =
          name.ends_with(kWeight) ? found_.modules.find(module_of(name)) : found_.modules.end();
      if (module == found_.modules.end()) continue;
      check_rule(rule, matrices_, module->first, ErrorKind::file, file_.file());
      read_module(module->first, module->second, rule);
      found_.modules.erase(module);
    }
  }

  /// A tensor of the model that was trained whole, or a bias that a product changes.
  void read_whole(const std::string& name, const BoundRule& rule) {
    const auto whole = found_.whole.find(name);
    const auto bias = biases_.find(name);
    if (whole == found_.whole.end() && bias == biases_.end()) return;
    if (rule.foreign.size() != 1)
      fail(ErrorKind::file, file_.file(), "{} is one of {} parts of {}; expected a whole matrix",
           name, rule.foreign.size(), rule.ours.front());
    std::vector<TensorView> parts;
    if (whole != found_.whole.end()) {
      parts = {as_plain_float(*whole->second)};
      rule.apply(parts);
      found_.whole.erase(whole);
    } else {
      for (const std::string& ours : rule.ours) parts.push_back(base_.tensor(ours));
    }
    if (bias != biases_.end()) {
      add_bias(parts, bias->second, rule);
      biases_.erase(bias);
    }
    for (size_t i = 0; i < rule.ours.size(); ++i) {
      // PEFT saves tables that it has not trained too
      const bool table = rule.ours[i] == model::kTokenTable || name == names_.head();
      if (table && equal_values(parts.at(i), base_.tensor(rule.ours[i]))) continue;
      out_.push_back(
          {.weight = rule.ours[i], .parts = {{kWholePart, as_plain_float(parts.at(i))}}});
    }
  }

  struct Bias {
    const TensorView* numbers;
    double scale;
  };

  void add_bias(std::vector<TensorView>& parts, const Bias& bias, const BoundRule& rule) const {
    std::vector<TensorView> more = {as_float32(*bias.numbers)};
    rule.apply(more);
    for (size_t i = 0; i < parts.size(); ++i) {
      const TensorView base = as_float32(parts[i]);
      if (more.at(i).shape != base.shape)
        of_another_model(folder_, fmt::format("lora_B.bias {}", format::shape_text(more[i].shape)),
                         rule.foreign.front(), base.shape);
      std::vector<float> sum(numbers_of(base).begin(), numbers_of(base).end());
      for (size_t k = 0; k < sum.size(); ++k)
        sum[k] += static_cast<float>(bias.scale) * numbers_of(more[i])[k];
      parts[i] = owned(kWholePart, base.shape, std::move(sum));
    }
  }

  void read_module(const std::string& module, const PeftModule& parts, const BoundRule& rule) {
    if (parts.tokens != nullptr) read_tokens(module, *parts.tokens, rule);
    if (parts.factors != nullptr) read_factors(module, *parts.factors, rule);
    if (parts.a != nullptr) read_product(module, parts, rule);
    if (parts.table_a != nullptr) {
      // A [r, tokens] and B [width, r] of a table [tokens, width]
      const TensorView a = turned(as_float32(*parts.table_b)),
                       b = turned(as_float32(*parts.table_a));
      read_product(module, {.a = &a, .b = &b}, rule);
    }
  }

  int64_t rows(const BoundRule& rule) const { return sum_of(rows_of(rule, matrices_)); }
  int64_t columns(const BoundRule& rule) const { return matrices_.at(rule.ours[0])[1]; }

  /// Adds a part of one column to each of the last `rule.ours.size()` that were read.
  void share(const BoundRule& rule, const char* part, const TensorView& column) {
    const std::vector<TensorView> parts = rows_as_ours(rule, column);
    for (size_t i = 0; i < parts.size(); ++i)
      out_[out_.size() - parts.size() + i].parts[part] = as_vector(parts[i]);
  }

  void read_factors(const std::string& module, const TensorView& factors, const BoundRule& rule) {
    const Shape out = {rows(rule), 1}, in = {1, columns(rule)};
    if (factors.shape != out && factors.shape != in)
      of_another_model(folder_, "ia3_l " + format::shape_text(factors.shape), module,
                       {rows(rule), columns(rule)});
    for (const std::string& name : rule.ours) out_.push_back({.weight = name});
    if (factors.shape == out) return share(rule, kOut, as_column(factors));
    for (size_t i = 0; i < rule.ours.size(); ++i)
      out_[out_.size() - 1 - i].parts[kIn] = as_vector(as_column(factors));
  }

  void read_product(const std::string& module, const PeftModule& parts, const BoundRule& rule) {
    const Shape &a = parts.a->shape, &b = parts.b->shape;
    if (a[1] != columns(rule) || b[0] != rows(rule))
      of_another_model(
          folder_,
          fmt::format("lora_A {} and lora_B {}", format::shape_text(a), format::shape_text(b)),
          module, {rows(rule), columns(rule)});
    check_rank(config_, module, a[0], 1, file_.file());
    const std::vector<TensorView> ups = rows_as_ours(rule, as_float32(*parts.b));
    for (size_t i = 0; i < rule.ours.size(); ++i)
      out_.push_back({.weight = rule.ours[i],
                      .parts = {{kLoraA, as_float32(*parts.a)}, {kLoraB, ups.at(i)}},
                      .scale = config_.scale_of(module, a[0]),
                      .rslora = config_.rslora()});
    if (parts.magnitude == nullptr) return;
    if (parts.magnitude->shape[0] != rows(rule))
      of_another_model(folder_, fmt::format("{} magnitudes", parts.magnitude->shape[0]), module,
                       {rows(rule), columns(rule)});
    share(rule, kLengths, as_column(*parts.magnitude));
  }

  /// The table with some of its rows replaced, in its own type where that is a float.
  void read_tokens(const std::string& module, const TensorView& rows, const BoundRule& rule) {
    const std::vector<int64_t> ids = config_.tokens_of(module);
    if (rule.ours.size() != 1 || !rule.steps.empty())
      fail(ErrorKind::file, file_.file(),
           "module {} has trained tokens, and family {} stores that table in another form than {}",
           module, base_.family, rule.ours.front());
    const TensorView table = as_plain_float(base_.tensor(rule.ours.front()));
    const int64_t width = table.shape[1];
    if (rows.shape != Shape{std::ssize(ids), width})
      fail(ErrorKind::file, file_.file(), "tensor {} has shape {}; expected {} for {} tokens",
           format::in_quotes(rows.name), format::shape_text(rows.shape),
           format::shape_text(Shape{std::ssize(ids), width}), ids.size());
    const TensorView numbers = as_float32(rows);
    const std::vector<double> wide(numbers_of(numbers).begin(), numbers_of(numbers).end());
    const TensorView typed = from_doubles("", table.dtype, rows.shape, wide);
    auto bytes = std::make_shared<std::vector<std::byte>>(table.data.begin(), table.data.end());
    const auto row = static_cast<size_t>(storage_bytes(table.dtype, width));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= table.shape[0])
        fail(ErrorKind::file, config_.file(), "token {} is beyond the vocabulary of {}", ids[i],
             table.shape[0]);
      std::memcpy(bytes->data() + static_cast<size_t>(ids[i]) * row, typed.data.data() + i * row,
                  row);
    }
    AdapterTensors one{.weight = rule.ours.front()};
    one.parts[kWholePart] = {kWholePart, table.dtype, table.shape, *bytes, bytes};
    out_.push_back(std::move(one));
  }

  /// Modules that are experts of a layer together: those of stacks, and those that no rule names.
  void read_packed() {
    if (stacks_.empty()) return;
    const bool pairs = family_value(family_, "hf", base_, kExpertRows) == Json("pairs");
    for (auto at = found_.modules.begin(); at != found_.modules.end();) {
      const std::string& module = at->first;
      const bool experts = module.ends_with(".experts") ||
                           module.ends_with(".experts.base_layer") || module.ends_with("_linear");
      if (!experts || layer_in(module) < 0) {
        ++at;
        continue;
      }
      for (AdapterTensors& one :
           read_packed_experts(module, at->second, stacks_, pairs, config_, file_.file()))
        out_.push_back(std::move(one));
      at = found_.modules.erase(at);
    }
  }

  void check_all_placed() const {
    if (!biases_.empty())
      fail(ErrorKind::file, file_.file(),
           "lora_bias: the file has a bias for {}, and this model has none there to which it could "
           "be added; expected an adapter trained with lora_bias=False (PEFT runs this one, but "
           "cannot merge it either)",
           biases_.begin()->first);
    if (found_.modules.empty() && found_.whole.empty()) return;
    const bool tensor = found_.modules.empty();
    fail(ErrorKind::usage, "adapter",
         "{} was trained for another model: {} {} has no place in this one, of family {}",
         folder_.string(), tensor ? "tensor" : "module",
         tensor ? found_.whole.begin()->first : found_.modules.begin()->first, base_.family);
  }

  const fs::path& folder_;
  const Checkpoint& base_;
  PeftConfig config_;
  format::TensorFile file_;
  const Family& family_;
  PeftNames names_;
  Shapes matrices_, stacks_;
  PeftFile found_;
  std::map<std::string, Bias> biases_;
  std::vector<AdapterTensors> out_;
};

}  // namespace
}  // namespace tessera::convert::peft

namespace tessera::convert {

std::vector<AdapterTensors> read_peft(const std::filesystem::path& folder,
                                      const Checkpoint& base,
                                      const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  return peft::PeftReader(folder, base, families).read();
}

}  // namespace tessera::convert
