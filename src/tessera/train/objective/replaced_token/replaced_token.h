// The objective "replaced_token" on two models (replaced_objective.h).
//   L = g L_generator + w L_discriminator
// the first the mean nats of the hidden tokens, the second the mean of -ln s(z) or -ln s(-z) over
// all tokens. What the generator draws is drawn without temperature, by the largest of logits and
// Gumbel's noise, and no gradient passes it.
//
// Under "disentangled" a table of the discriminator is E_D = stop(E_G) + E_delta: E_delta, 0 at the
// start, is what is trained, and E_G has the generator's gradient alone. He, Gao, Chen 2023
// (DeBERTaV3), arXiv:2111.09543, sec. 3.3.
#pragma once

#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/replaced_token/replaced_recipe.h"

namespace tessera::train {

/// A class of every row of logits [M, C], by uniform numbers u [M, C] in (0, 1): row i has class c
/// with probability softmax(logits_i)_c.
Tensor drawn_classes(const Tensor& logits_MC, const Tensor& u_MC);

/// A text with what was drawn for its targets in their places, and of each token whether it is
/// another's than the text's: 1 or 0, double.
struct Replaced {
  PackedBatch packed;
  Tensor is_other_N;
};
/// `drawn`: an id for every target that is not -1, in order.
Replaced replaced_by(const PackedBatch& packed, const std::vector<int64_t>& drawn);

/// Of every token, from its logit z, -ln s(z) where it is another's, else -ln s(-z); in double.
Tensor nats_of_found(const Tensor& z_N, const Tensor& is_other_N);

std::unique_ptr<Objective> replaced_token(const Recipe& recipe,
                                          std::unique_ptr<Dataset> source,
                                          const ObjectiveOptions& options);

}  // namespace tessera::train
