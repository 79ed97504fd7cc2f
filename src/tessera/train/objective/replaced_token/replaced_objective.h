// The objective "replaced_token" (ELECTRA): detects which tokens a generator has replaced.
// Torch-free.
//
// The recipe's spec is the discriminator, with the head "token_score". A generator is trained with
// "masked_lm" at the same time; its samples replace the masked tokens, and the discriminator
// classifies every token as original or replaced. Clark et al. 2020 (ELECTRA), arXiv:2003.10555,
// sec. 2.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/replaced_token/replaced_recipe.h"

namespace tessera::train {

std::vector<ObjectiveKind> replaced_token_kinds();

/// A generator spec of a quarter of the width, with a masked-language-model head: reduces d_model,
/// heads and hidden widths; token embeddings keep their width and are projected. Throws Error(spec)
/// with the reason if that is no valid spec.
model::ModelSpec quarter_width(const model::ModelSpec& spec);

/// The generator of an objective of this type.
const model::ModelSpec& generator_of(const ObjectiveConfig& objective);

}  // namespace tessera::train
