#include "tessera/train/recipe/aliases.h"

#include <string>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using spec::Json;

constexpr RecipeAlias kAliases[] = {
    {"", "early_stopping", "stop"},
    {"train", "gradient_accumulation", "accumulate"},
    {"train", "sequence_length", "length"},
    {"train", "max_grad_norm", "clip_norm"},
    {"train", "gradient_checkpointing", "recompute"},
    {"train", "mtp_loss", "predictors"},
    {"train", "shuffled", "isolated", "windows"},
    {"train", "tbptt", "carried", "windows"},
    {"optimizer", "ema", "average"},
    {"stop", "target", "reach"},
    {"objective", "length_normalized", "by_length"},
    {"objective", "label_smoothing", "smoothing"},
    {"objective", "cmlm", "mask_predict", "type"},
    {"objective", "electra", "replaced_token", "type"},
    {"objective", "xlnet", "permutation", "type"},
    {"objective", "sft", "chat", "type"},
};

/// Booleans of other programs, for keys that name the recomputed layers here.
Json recompute_of(Json value) {
  if (!value.is_boolean()) return value;
  return Json{{"of", value.get<bool>() ? "layers" : "none"}};
}

void rename_key(Json& section, const RecipeAlias& name, bool overrides) {
  if (!section.contains(name.alias)) return;
  Json value = section[name.alias];
  if (name.kept == std::string_view("recompute")) value = recompute_of(std::move(value));
  section.erase(name.alias);
  if (!section.contains(name.kept)) {
    section[name.kept] = std::move(value);
    return;
  }
  Json& kept = section[name.kept];
  if (!overrides)
    fail(ErrorKind::spec,
         std::string(name.section) + (*name.section == '\0' ? "" : ".") + name.kept,
         "\"{}\" is another name of it, and both are given; leave one of them out", name.alias);
  if (kept.is_object() && value.is_object())
    kept.merge_patch(value);
  else
    kept = std::move(value);
}

}  // namespace

std::span<const RecipeAlias> recipe_aliases() {
  return kAliases;
}

void use_kept_names(Json& recipe, bool overrides) {
  if (!recipe.is_object()) return;
  for (const RecipeAlias& name : kAliases) {
    Json* section = &recipe;
    if (*name.section != '\0') {
      const auto found = recipe.find(name.section);
      if (found == recipe.end() || !found->is_object()) continue;
      section = &*found;
    }
    if (*name.key == '\0') {
      rename_key(*section, name, overrides);
    } else if (const auto value = section->find(name.key);
               value != section->end() && *value == name.alias) {
      *value = name.kept;
    }
  }
}

}  // namespace tessera::train
