// The objective "masked_lm": tokens of a text that are hidden in it. Torch-free.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/objective/masked_lm/masking.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind masked_lm_kind();

/// What an objective of that type, which asks for hidden tokens, needs of the rest of a recipe:
/// throws Error(spec). `head`: that of the spec, "" = any.
void check_masked(const Recipe& recipe,
                  const MaskedRecipe& how,
                  std::string_view type,
                  std::string_view head);

/// How that hides them; throws Error(spec) for a mask that there is not.
Masking masking_of(const MaskedRecipe& how, const Recipe& recipe, const text::Tokenizer& tokenizer);

/// Row r of a batch with tokens hidden by keys[r]; the pieces of a row lie side by side.
PackedBatch hide_tokens(PackedBatch batch,
                        const Masking& masking,
                        const std::vector<RandomKey>& keys);

/// Windows of the recipe's texts with tokens hidden in them.
std::unique_ptr<Dataset> masked_windows(const Recipe& recipe,
                                        const MaskedRecipe& how,
                                        const std::filesystem::path& cache,
                                        const CancelToken* cancel);

}  // namespace tessera::train
