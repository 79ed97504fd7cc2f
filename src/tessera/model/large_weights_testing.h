// Weights of models under test.
#pragma once

#include "tessera/model/model.h"

namespace tessera::model {

/// Fresh weights whose matrices and embeddings are `factor` times as large: at the usual small
/// initial values a wrong formula hardly shows.
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
