// The objective "replaced_token" on two models (replaced_objective.h).
//   L = g L_generator + w L_discriminator
// the first is the mean nats of the masked tokens, the second the mean of -ln s(z) or -ln s(-z)
// over all tokens. The generator samples at temperature 1, by the largest sum of logits and Gumbel
// noise, and no gradient passes the samples.
//
// With "disentangled", an embedding table of the discriminator is E_D = stop(E_G) + E_delta:
// E_delta, initially 0, is trained, and E_G has the generator's gradient only. He, Gao, Chen 2023
// (DeBERTaV3), arXiv:2111.09543, sec. 3.3.
#pragma once

#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/replaced_token/replaced_recipe.h"

namespace tessera::train {

/// Samples a class for every row of logits [M, C] with uniform numbers u [M, C] in (0, 1): row i
/// has class c with probability softmax(logits_i)_c.
Tensor drawn_classes(const Tensor& logits_MC, const Tensor& u_MC);

/// A text with samples in the positions of its targets, and for each token whether it differs from
/// the original: 1 or 0, double.
struct Replaced {
  PackedBatch packed;
  Tensor is_other_N;
};
/// `drawn`: an id for every target that is not -1, in order.
Replaced replaced_by(const PackedBatch& packed, const std::vector<int64_t>& drawn);

/// By token, from its logit z: -ln s(z) if it was replaced, else -ln s(-z); in double.
Tensor nats_of_found(const Tensor& z_N, const Tensor& is_other_N);

std::unique_ptr<Objective> replaced_token(const ModelPlan& plan,
                                          const ObjectivePtr& objective,
                                          std::unique_ptr<Dataset> source,
                                          const ObjectiveOptions& options);

}  // namespace tessera::train
