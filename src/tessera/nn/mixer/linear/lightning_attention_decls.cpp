#include "tessera/nn/mixer/linear/lightning_attention.h"

#include <cmath>

namespace tessera::nn {

using Kind = spec::ParamKind;

std::vector<double> LightningAttentionConfig::log_decays(const spec::Scope& scope) const {
  const auto heads = static_cast<double>(n_heads), layer = static_cast<double>(scope.layer),
             layers = static_cast<double>(scope.n_layers);
  std::vector<double> out;
  for (int64_t i = 0; i < n_heads; ++i) {
    const auto h = static_cast<double>(i);
    out.push_back(slopes == LightningSlopes::minimax
                      ? -std::exp2(-8 * (h + 1) / heads) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)
                      : -(8 / heads) * (1 - layer / layers) * h);
  }
  return out;
}

void LightningAttentionConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", keys(), scope.d_model, false);
  list.linear("k", keys(), scope.d_model, false);
  list.linear("v", values(), scope.d_model, false, spec::Init::content());
  list.linear("g", values(), scope.d_model, false);
  list.add({"norm.weight", {values()}, spec::Init::constant(1), Kind::norm});
  list.linear("o", scope.d_model, values(), false, spec::Init::into_stream(scope.n_layers));
}

}  // namespace tessera::nn
