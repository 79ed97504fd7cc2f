// The objective "masked_lm": tokens of a text that are hidden in it. Torch-free.
#pragma once

#include "tessera/train/masking.h"
#include "tessera/train/objective_config.h"

namespace tessera::train {

ObjectiveKind masked_lm_kind();

/// What an objective of that type, which asks for hidden tokens, needs of the rest of a recipe:
/// throws Error(spec). `head`: that of the spec.
void check_masked(const Recipe& recipe,
                  const MaskedRecipe& how,
                  std::string_view type,
                  std::string_view head);

/// Windows of the recipe's texts with tokens hidden in them.
std::unique_ptr<Source> masked_windows(const Recipe& recipe,
                                       const MaskedRecipe& how,
                                       const std::filesystem::path& cache,
                                       const CancelToken* cancel);

}  // namespace tessera::train
