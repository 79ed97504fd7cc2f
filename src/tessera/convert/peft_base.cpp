#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/convert/peft_names.h"
#include "tessera/convert/peft_parts.h"

namespace tessera::convert::peft {
namespace {

namespace fs = std::filesystem;

/// Puts a spec in place of a checkpoint's, with tensors that `given` names instead of its own.
/// Throws Error(usage) where neither has one of the right shape.
Checkpoint with_spec(Checkpoint base, Json json, const std::map<std::string, TensorView>& given) {
  model::ModelSpec spec = model::read_model_spec(json);
  std::vector<TensorView> tensors;
  for (const spec::ParamDecl& decl : model::parameters(spec)) {
    const auto brought = given.find(decl.name);
    const auto own = std::find_if(base.tensors.begin(), base.tensors.end(),
                                  [&](const TensorView& one) { return one.name == decl.name; });
    const TensorView* found = brought != given.end()      ? &brought->second
                              : own != base.tensors.end() ? &*own
                                                          : nullptr;
    if (found == nullptr || found->shape != decl.shape)
      fail(ErrorKind::usage, "adapter", "the adapter needs {} {}; found {}", decl.name,
           format::shape_text(decl.shape),
           found == nullptr ? "none" : format::shape_text(found->shape));
    tensors.push_back(*found);
    tensors.back().name = decl.name;
  }
  base.spec_json = model::resolve(spec);
  base.spec = std::move(spec);
  base.tensors = std::move(tensors);
  return base;
}

/// A spec whose output matrix is the token embedding, with one of its own.
Json untied(Json json) {
  const Json head = json.value("head", Json());
  const std::string type = head.value("type", "");
  Json own = head;
  if (type == "tied") {
    own["type"] = "linear";
    own.erase("width");
    if (head.value("width", json["d_model"]) == json["d_model"]) {
      json["head"] = own;
      return json;
    }
  } else if (head.value("tied", false)) {
    own["tied"] = false;
    json["head"] = own;
    return json;
  }
  fail(ErrorKind::usage, "adapter",
       "it trains the token embedding and the output matrix apart, which a head of type \"{}\" "
       "cannot have",
       type);
}

class BaseReader {
 public:
  BaseReader(Checkpoint base, const PeftConfig& config, const fs::path& folder, FamilySet& families)
      : base_(std::move(base)),
        config_(config),
        family_(family_of(base_, families)),
        names_(family_, base_),
        file_(open_peft_tensors(folder)),
        found_(renamed(read_peft_file(file_, config), names_)) {}

  Checkpoint run() {
    grow();
    if (!names_.tied() || !base_.spec.head) return std::move(base_);
    const bool parts = separate();
    if (parts && names_.shared())
      fail(
          ErrorKind::usage, "adapter",
          "it changes one of several matrices that are tied in family {}; expected an adapter that "
          "leaves the token embedding and the output matrix as they are",
          base_.family);
    if (parts) untie();
    return std::move(base_);
  }

 private:
  const TensorView* whole(const std::string& name) const {
    const auto found = found_.whole.find(name);
    return found == found_.whole.end() ? nullptr : found->second;
  }
  PeftModule module(const std::string& name) const {
    const auto found = found_.modules.find(module_of(name));
    return found == found_.modules.end() ? PeftModule{} : found->second;
  }
  /// A tensor that replaces the one of the base, which tied names share, and is no copy of it.
  const TensorView* replaced(const std::string& name) const {
    return config_.saves(name) || config_.ties_tables() ? nullptr : whole(name);
  }

  /// A vocabulary of another size: PEFT saves the tables whole.
  void grow() {
    const TensorView* table = names_.table().empty() ? nullptr : whole(names_.table());
    if (table == nullptr || table->shape.size() != 2 || table->shape[0] == base_.spec.vocab ||
        table->shape[0] < 1 || table->shape[1] != base_.tensor(model::kTokenTable).shape[1])
      return;
    if (!base_.spec_json.contains("vocab") || names_.shared())
      fail(
          ErrorKind::usage, "adapter",
          "it has {} tokens and the model {}; a vocabulary that grew is not supported in family {}",
          table->shape[0], base_.spec.vocab, base_.family);
    std::map<std::string, TensorView> given;
    for_each_rule(family_, "hf", base_, [&](const BoundRule& rule) {
      if (rule.foreign.size() != 1 || rule.ours.size() != 1 || !rule.steps.empty()) return;
      if (const TensorView* tensor = whole(rule.foreign.front()))
        if (!tensor->shape.empty() && tensor->shape.front() == table->shape[0])
          given[rule.ours.front()] = as_plain_float(*tensor);
    });
    Json json = base_.spec_json;
    json["vocab"] = table->shape[0];
    base_ = with_spec(std::move(base_), std::move(json), given);
  }

  /// Whether the embedding and the output matrix, tied in the base, part: PEFT gives a module of
  /// modules_to_save, or one with a product, a matrix of its own. Rows of tokens are shared.
  bool separate() const {
    const std::string &table = names_.table(), &head = names_.head();
    const PeftModule below = module(table), above = module(head);
    const auto product = [](const PeftModule& parts) { return parts.a || parts.table_a; };
    if (product(below) || product(above)) return true;
    if (above.tokens != nullptr)
      return below.tokens == nullptr || !equal_values(*below.tokens, *above.tokens) ||
             config_.tokens_of(module_of(table)) != config_.tokens_of(module_of(head));
    const TensorView *one = whole(table), *other = whole(head);
    const bool same = one != nullptr && other != nullptr && equal_values(*one, *other);
    if (same || (one == nullptr && other == nullptr)) return false;
    const bool copies = config_.saves(table) || config_.saves(head) || config_.ties_tables();
    if (!copies && one != nullptr && other != nullptr)
      fail(ErrorKind::file, file_.file(),
           "tensors {} and {} differ, and in this model they are one; expected equal ones, or "
           "modules_to_save with both",
           format::in_quotes(one->name), format::in_quotes(other->name));
    return copies;
  }

  void untie() {
    std::map<std::string, TensorView> given;
    const TensorView* table = replaced(names_.table());
    if (table == nullptr) table = replaced(names_.head());
    const TensorView& shared =
        table != nullptr && !equal_values(*table, base_.tensor(model::kTokenTable))
            ? given[model::kTokenTable] = as_plain_float(*table)
            : base_.tensor(model::kTokenTable);
    given[kHead] = shared;
    Json json = untied(base_.spec_json);
    base_ = with_spec(std::move(base_), std::move(json), given);
  }

  Checkpoint base_;
  const PeftConfig& config_;
  const Family& family_;
  PeftNames names_;
  format::TensorFile file_;
  PeftFile found_;
};

}  // namespace
}  // namespace tessera::convert::peft

namespace tessera::convert {

Checkpoint peft_base(Checkpoint base,
                     const std::filesystem::path& folder,
                     const LoadOptions& options) {
  const PeftConfig config(folder / kPeftConfig);
  if (config.has_virtual_tokens()) return base;
  FamilySet families = FamilySet::load(options.families);
  return peft::BaseReader(std::move(base), config, folder, families).run();
}

}  // namespace tessera::convert
