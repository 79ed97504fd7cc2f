// Aliases of recipe keys and values in other programs. They are accepted; runs and `tessera show
// --resolved` write the canonical names. Torch-free.
#pragma once

#include <span>

#include "tessera/spec/json.h"

namespace tessera::train {

struct RecipeAlias {
  const char* section;  // "train", or "" = the recipe itself
  const char* alias;    // an alias of a key, or of a value of `key`
  const char* kept;
  const char* key = "";  // of values: "type"; "" = a key is renamed
};
std::span<const RecipeAlias> recipe_aliases();

/// Replaces aliases by canonical names; anything that is no object stays unchanged. "train":
/// {"gradient_checkpointing": true} becomes "recompute": {"of": "layers"}. With `overrides` an
/// alias replaces the canonical key; otherwise both together throw Error(spec).
void use_kept_names(spec::Json& recipe, bool overrides = false);

}  // namespace tessera::train
