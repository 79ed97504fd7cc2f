#include "tessera/train/optimizer/optimizer_recipe.h"

namespace tessera::train {
namespace {

using spec::Json;
using spec::Scope;

/// Keys that every optimizer of a recipe has in addition to those of its rule.
template <class R>
struct Whole : R {
  double lr = R::kRate;
  double weight_decay = R::kDecay;
  std::optional<AverageRecipe> average = {};
  std::vector<GroupRecipe> groups = {};

  static constexpr auto fields() {
    using C = Whole;
    using spec::field;
    return std::tuple_cat(
        std::tuple{
            field("lr", &C::lr, "base learning rate; the schedule multiplies it", {.min = 0})},
        R::fields(),
        std::tuple{field("weight_decay", &C::weight_decay,
                         "of matrices and embeddings alone; of sgd and adam a term of the gradient",
                         {.min = 0}),
                   field("average", &C::average,
                         "mean of the weights, evaluated and saved in their place; null = none"),
                   field("groups", &C::groups,
                         "parameters treated otherwise; of several that match the first holds")});
  }
};

/// The optimizer of a group.
template <class R>
struct GroupOptimizer : R {
  double lr = R::kRate;
  static constexpr auto fields() {
    using C = GroupOptimizer;
    using spec::field;
    return std::tuple_cat(
        std::tuple{field("lr", &C::lr, "its base rate; the schedule multiplies it", {.min = 0})},
        R::fields());
  }
};

using Wholes = spec::WrappedUnion<Whole, RuleKeys>;
using GroupOptimizers = spec::WrappedUnion<GroupOptimizer, RuleKeys>;

void check_keys(const RuleKeys& rule, const Scope& scope) {
  std::visit(
      [&](const auto& keys) {
        if constexpr (requires { keys.betas; }) check_betas(keys.betas, scope.at("betas").path);
        if constexpr (requires { keys.adamw; })
          check_betas(keys.adamw.betas, scope.at("adamw").at("betas").path);
      },
      rule);
  if (const auto* sgd = std::get_if<SgdKeys>(&rule)) {
    if (sgd->nesterov && (sgd->momentum == 0 || sgd->dampening > 0))
      fail(ErrorKind::spec, scope.at("nesterov").path,
           "true with momentum {} and dampening {}; expected momentum and no dampening",
           sgd->momentum, sgd->dampening);
  }
  if (const auto* adafactor = std::get_if<AdafactorKeys>(&rule)) {
    if (adafactor->form == AdafactorForm::torch &&
        (adafactor->beta1 > 0 || !adafactor->scale_parameter))
      fail(ErrorKind::spec, scope.at("form").path,
           "\"torch\" has neither beta1 nor scale_parameter false; expected \"transformers\"");
  }
  if (const auto* free = std::get_if<ScheduleFreeKeys>(&rule); free && free->betas[0] <= 0)
    fail(ErrorKind::spec, scope.at("betas").path,
         "found 0; the average is a part of what gradients are taken at: expected more than 0");
}

RuleRecipe read_part(const Json& json, const Scope& scope) {
  RuleRecipe out;
  std::visit(
      [&]<class R>(const GroupOptimizer<R>& part) {
        out.lr = part.lr;
        out.keys = R(part);
      },
      spec::read_union<GroupOptimizers>(json, scope));
  check_keys(out.keys, scope);
  return out;
}

/// Keys added later, at their defaults: older runs can be resumed.
void leave_out_defaults(Json& json) {
  if (json.value("moments", "") == "float32") json.erase("moments");
}

Json dump_part(const RuleRecipe& recipe) {
  Json json;
  std::visit(
      [&]<class R>(const R& keys) {
        GroupOptimizer<R> part;
        static_cast<R&>(part) = keys;
        part.lr = recipe.lr;
        json = spec::dump_union(GroupOptimizers(part));
      },
      recipe.keys);
  leave_out_defaults(json);
  return json;
}

/// Reads the optimizers of groups from `json`; null if a group has none.
std::vector<Json> taken_from_groups(Json& json) {
  std::vector<Json> taken;
  if (!json.is_object() || !json.contains("groups") || !json["groups"].is_array()) return taken;
  for (Json& group : json["groups"]) {
    taken.emplace_back(nullptr);
    if (!group.is_object() || !group.contains("optimizer")) continue;
    taken.back() = group["optimizer"];
    group.erase("optimizer");
  }
  return taken;
}

}  // namespace

void check_betas(const std::vector<double>& betas, const std::string& where) {
  if (betas.size() != 2) fail(ErrorKind::spec, where, "{} numbers; expected 2", betas.size());
}

OptimizerRecipe read_optimizer(const Json& json, const Scope& scope) {
  Json rest = json;
  const std::vector<Json> parts = taken_from_groups(rest);
  OptimizerRecipe out;
  std::visit(
      [&]<class R>(const Whole<R>& whole) {
        out.lr = whole.lr;
        out.weight_decay = whole.weight_decay;
        out.average = whole.average;
        out.groups = whole.groups;
        out.rule = R(whole);
      },
      spec::read_union<Wholes>(rest, scope));
  check_keys(out.rule, scope);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].is_null()) continue;
    const Scope at = scope.at(fmt::format("groups[{}]", i));
    if (out.groups[i].frozen)
      fail(ErrorKind::spec, at.at("optimizer").path, "given for parameters that are frozen");
    out.groups[i].optimizer = read_part(parts[i], at.at("optimizer"));
  }
  if (out.average) {
    const auto averages = [](const RuleKeys& rule) {
      return std::holds_alternative<ScheduleFreeKeys>(rule);
    };
    bool twice = averages(out.rule);
    for (const GroupRecipe& group : out.groups)
      twice = twice || (group.optimizer && averages(group.optimizer->keys));
    if (twice)
      fail(ErrorKind::spec, scope.at("average").path,
           "given with \"{}\", which has an average of its own; expected one of the two",
           ScheduleFreeKeys::kName);
  }
  return out;
}

Json dump_optimizer(const OptimizerRecipe& recipe) {
  Json json;
  std::visit(
      [&]<class R>(const R& keys) {
        Whole<R> whole;
        static_cast<R&>(whole) = keys;
        whole.lr = recipe.lr;
        whole.weight_decay = recipe.weight_decay;
        whole.average = recipe.average;
        whole.groups = recipe.groups;
        json = spec::dump_union(Wholes(whole));
      },
      recipe.rule);
  leave_out_defaults(json);
  if (!recipe.average) json.erase("average");
  if (recipe.groups.empty()) json.erase("groups");
  for (size_t i = 0; i < recipe.groups.size(); ++i)
    if (recipe.groups[i].optimizer)
      json["groups"][i]["optimizer"] = dump_part(*recipe.groups[i].optimizer);
  return json;
}

Json optimizer_schema() {
  const Json parts = spec::type_schemas<GroupOptimizers>();
  Json schema = spec::union_schema<Wholes>("how parameters are updated");
  for (Json& whole : schema["anyOf"])
    whole["properties"]["groups"]["items"]["properties"]["optimizer"] = {
        {"description", "another one than the rest's, with a rate of its own"}, {"anyOf", parts}};
  return schema;
}

}  // namespace tessera::train
