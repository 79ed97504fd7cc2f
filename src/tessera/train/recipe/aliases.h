// Other programs' names of recipe keys and values. They are read as the kept ones, which are what
// runs and `tessera show --resolved` write. Torch-free.
#pragma once

#include <span>

#include "tessera/spec/json.h"

namespace tessera::train {

struct RecipeAlias {
  const char* section;  // "train", or "" = the recipe itself
  const char* alias;    // a key, or the value of `key`
  const char* kept;
  const char* key = "";  // of values: "type"; "" = a key is renamed
};
std::span<const RecipeAlias> recipe_aliases();

/// Renames what has another name; anything that is no object is left as it is. "train":
/// {"gradient_checkpointing": true} becomes "recompute": {"of": "layers"}. With `overrides` an
/// alias takes the place of the kept key; otherwise both together throw Error(spec).
void use_kept_names(spec::Json& recipe, bool overrides = false);

}  // namespace tessera::train
