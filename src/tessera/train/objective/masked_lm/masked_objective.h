// The objective "masked_lm": masked language modeling. Torch-free.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/objective/masked_lm/masking.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

std::vector<ObjectiveKind> masked_lm_kinds();

/// Checks the rest of a recipe for an objective of that type with masked tokens; throws
/// Error(spec). `head`: the required head of the spec, "" = any.
void check_masked(const DataPlan& plan,
                  const MaskedRecipe& how,
                  std::string_view type,
                  std::string_view head);

/// The masking of a recipe; throws Error(spec) for a mask token that does not exist.
Masking masking_of(const MaskedRecipe& how, int64_t vocab, const text::Tokenizer& tokenizer);

/// Masks row r of a batch with keys[r]; the documents of a row must be adjacent.
PackedBatch hide_tokens(PackedBatch batch,
                        const Masking& masking,
                        const std::vector<RandomKey>& keys);

/// Windows of the recipe's texts with masked tokens.
std::unique_ptr<Dataset> masked_windows(const DataPlan& plan,
                                        const MaskedRecipe& how,
                                        const std::filesystem::path& cache,
                                        const CancelToken* cancel);

}  // namespace tessera::train
