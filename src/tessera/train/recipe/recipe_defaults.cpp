#include "tessera/train/recipe/recipe_defaults.h"

#include <fmt/ranges.h>

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {
namespace {

bool is_written(const Recipe& recipe, const char* pointer) {
  return recipe.written.is_object() && recipe.written.contains(Json::json_pointer(pointer));
}

/// Numeric and boolean keys of the objective that are not 0 or false.
void add_objective(const Recipe& recipe, std::vector<std::string>& out) {
  const Json keys = recipe.objective->dump();
  if (!keys.is_object()) return;
  for (const auto& [key, value] : keys.items()) {
    const bool counts = value.is_number() ? value != 0 : value == Json(true);
    if (counts && !is_written(recipe, ("/objective/" + key).c_str()))
      out.push_back(fmt::format("objective.{} {}", key, value.dump()));
  }
}

}  // namespace

std::string defaults_in_force(const Recipe& recipe) {
  std::vector<std::string> out;
  if (recipe.train.clip_norm > 0 && !is_written(recipe, "/train/clip_norm"))
    out.push_back(
        fmt::format("gradients clipped at norm {} (train.clip_norm)", recipe.train.clip_norm));
  if (!is_written(recipe, "/optimizer/lr"))
    out.push_back(fmt::format("rate {} (optimizer.lr)", recipe.optimizer.lr));
  if (recipe.optimizer.weight_decay > 0 && !is_written(recipe, "/optimizer/weight_decay"))
    out.push_back(
        fmt::format("weight decay {} (optimizer.weight_decay)", recipe.optimizer.weight_decay));
  if (!std::holds_alternative<ConstantSchedule>(recipe.schedule) &&
      !is_written(recipe, "/schedule/type"))
    out.push_back(fmt::format("{} schedule down to {} of the rate (schedule)",
                              spec::type_of(recipe.schedule),
                              warmup_of(recipe.schedule).final_fraction));
  add_objective(recipe, out);
  return out.empty() ? "" : fmt::format("defaults in force: {}", fmt::join(out, ", "));
}

}  // namespace tessera::train
