#include "tessera/train/objective_config.h"

#include <fmt/ranges.h>

#include "tessera/spec/names.h"
#include "tessera/train/chat_objective.h"
#include "tessera/train/contrastive_objective.h"
#include "tessera/train/distillation_objective.h"
#include "tessera/train/label_objective.h"
#include "tessera/train/mask_predict_objective.h"
#include "tessera/train/masked_objective.h"
#include "tessera/train/next_token_objective.h"
#include "tessera/train/noise_objective.h"
#include "tessera/train/permutation_objective.h"
#include "tessera/train/preference_objective.h"
#include "tessera/train/recipe.h"
#include "tessera/train/replaced_objective.h"

namespace tessera::train {
namespace {

using spec::Json;

const std::vector<ObjectiveKind>& objective_kinds() {
  static const std::vector<ObjectiveKind> all = [] {
    std::vector<ObjectiveKind> out = noise_objective_kinds();
    out.push_back(masked_lm_kind());
    out.push_back(permutation_kind());
    out.push_back(mask_predict_kind());
    out.push_back(chat_kind());
    out.push_back(distillation_kind());
    out.push_back(preference_kind());
    out.push_back(contrastive_kind());
    out.push_back(replaced_token_kind());
    for (ObjectiveKind& kind : label_objective_kinds()) out.push_back(std::move(kind));
    return out;
  }();
  return all;
}

}  // namespace

ObjectivePtr read_objective(const Json& json, const Recipe& recipe) {
  if (json.is_null()) return default_objective(recipe);
  const spec::Scope scope = spec::Scope().at("objective");
  if (!json.is_object())
    fail(ErrorKind::spec, scope.path, "found {}; expected an object", spec::kind_of(json));
  if (!json.contains("type"))
    fail(ErrorKind::spec, scope.path, "\"type\" is missing; expected what is learned");
  const std::string type = spec::detail::read_string(json["type"], scope.at("type"));
  std::vector<std::string> known;
  for (const ObjectiveKind& kind : objective_kinds()) {
    if (kind.type == type) return kind.read(json, scope, recipe);
    known.push_back(kind.type);
  }
  fail(ErrorKind::spec, scope.at("type").path, "unknown value \"{}\"{}; expected one of {}", type,
       spec::did_you_mean(type, known), fmt::join(known, ", "));
}

void for_each_objective_path(Json& objective, const std::function<void(Json&)>& visit) {
  if (!objective.is_structured()) return;
  for (Json& inner : objective) for_each_objective_path(inner, visit);
  if (!objective.is_object()) return;
  for (const ObjectiveKind& kind : objective_kinds()) {
    if (objective.value("type", Json()) != kind.type) continue;
    for (const std::string& key : kind.paths)
      if (objective.contains(key) && objective[key].is_string()) visit(objective[key]);
  }
}

bool learns_from_labels(const Json& objective) {
  if (!objective.is_object()) return false;
  for (const ObjectiveKind& kind : objective_kinds())
    if (objective.value("type", Json()) == Json(kind.type)) return kind.labelled;
  return false;
}

Json objective_schema() {
  Json any = Json::array();
  for (const ObjectiveKind& kind : objective_kinds()) {
    Json schema = kind.schema();
    schema["properties"]["type"] = {{"const", kind.type}, {"description", "what is learned"}};
    schema["required"].push_back("type");
    any.push_back(std::move(schema));
  }
  return {{"description", "what is learned; null = the next token, of pairs the answer"},
          {"anyOf", std::move(any)}};
}

void check_text_alone(const Recipe& recipe, std::string_view type) {
  if (recipe.task || recipe.data.source_key)
    fail(ErrorKind::spec, "objective.type",
         "\"{}\" asks for tokens of a text; expected files of text alone as data", type);
}

}  // namespace tessera::train
