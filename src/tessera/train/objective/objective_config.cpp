#include "tessera/train/objective/objective_config.h"

#include <fmt/ranges.h>

#include "tessera/spec/names.h"
#include "tessera/train/objective/next_token/next_token_objective.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

// those of the table
#define TESSERA_OBJECTIVE(entries, train) std::vector<ObjectiveKind> entries();
#include "tessera/train/objective/objectives.def"

namespace {

using spec::Json;

const std::vector<ObjectiveKind>& objective_kinds() {
  static const std::vector<ObjectiveKind> all = [] {
    std::vector<ObjectiveKind> out;
    size_t row = 0;
    const auto add = [&](std::vector<ObjectiveKind> kinds) {
      for (ObjectiveKind& kind : kinds) {
        kind.row = row;
        out.push_back(std::move(kind));
      }
      ++row;
    };
#define TESSERA_OBJECTIVE(entries, train) add(entries());
#include "tessera/train/objective/objectives.def"
    return out;
  }();
  return all;
}

}  // namespace

ObjectivePtr read_objective(const Json& json,
                            const model::ModelSpec& spec,
                            const DataRecipe& data) {
  if (json.is_null()) return default_objective(spec, data);
  const spec::Scope scope = spec::Scope().at("objective");
  if (!json.is_object())
    fail(ErrorKind::spec, scope.path, "found {}; expected an object", spec::kind_of(json));
  if (!json.contains("type"))
    fail(ErrorKind::spec, scope.path, "\"type\" is missing; expected the type of the objective");
  const std::string type = spec::detail::read_string(json["type"], scope.at("type"));
  std::vector<std::string> known;
  for (const ObjectiveKind& kind : objective_kinds()) {
    if (kind.type == type) return kind.read(json, scope, spec, data);
    known.push_back(kind.type);
  }
  fail(ErrorKind::spec, scope.at("type").path, "unknown value \"{}\"{}; expected one of {}", type,
       spec::did_you_mean(type, known), fmt::join(known, ", "));
}

std::optional<size_t> objective_row(std::string_view type) {
  for (const ObjectiveKind& kind : objective_kinds())
    if (kind.type == type) return kind.row;
  return std::nullopt;
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
    schema["properties"]["type"] = {{"const", kind.type},
                                    {"description", "the type of the objective"}};
    schema["required"].push_back("type");
    any.push_back(std::move(schema));
  }
  return {{"description", "the training objective; null = the next token, of pairs the target"},
          {"anyOf", std::move(any)}};
}

void check_text_alone(const DataRecipe& data, std::string_view type) {
  if (data.text() == nullptr || data.has_sources())
    fail(ErrorKind::spec, "objective.type", "\"{}\" needs text; expected text files as data", type);
}

}  // namespace tessera::train
