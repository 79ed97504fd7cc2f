// The objective "replaced_token": which tokens of a text another model has put there. Torch-free.
//
// The recipe's spec is the discriminator, with the head "token_score". Beside it a generator learns
// "masked_lm"; what it draws for the tokens that were hidden takes their place, and of all tokens
// the discriminator says whether they are those of the text. Clark et al. 2020 (ELECTRA),
// arXiv:2003.10555, sec. 2.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/replaced_token/replaced_recipe.h"

namespace tessera::train {

ObjectiveKind replaced_token_kind();

/// A spec at a quarter of its width, with a head for hidden tokens: d_model, heads and hidden
/// widths of its layers; vectors of tokens stay as wide as they are, and are projected. Throws
/// Error(spec) where that is no model, for the reason that it is none.
model::ModelSpec quarter_width(const model::ModelSpec& spec);

/// The generator of a recipe with this objective.
const model::ModelSpec& generator_of(const Recipe& recipe);

}  // namespace tessera::train
