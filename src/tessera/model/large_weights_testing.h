// Weights for tests of models.
#pragma once

#include "tessera/model/model.h"

namespace tessera::model {

/// Initial weights with matrices and embeddings scaled by `factor`: with the usual small initial
/// values a wrong formula is hard to detect.
inline Weights large_weights(const ModelSpec& spec,
                             uint64_t seed,
                             double factor = 15,
                             at::ScalarType type = at::kFloat) {
  Weights weights = Weights::initial(spec, seed, type);
  const at::NoGradGuard no_gradients;
  for (const auto& [decl, weight] : weights.all())
    if (decl.kind == spec::ParamKind::matrix || decl.kind == spec::ParamKind::embedding)
      Tensor(weight->dense_tensor()).mul_(factor);
  return weights;
}

}  // namespace tessera::model
