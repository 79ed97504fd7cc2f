#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/linear/performer.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

void PerformerConfig::complete(const spec::Scope& scope) {
  require_heads_divide(head_dim, n_heads, scope.d_model, scope);
  head_dim = width_of_head(scope);
  if (n_features == 0 && !deterministic()) {
    const auto d = static_cast<double>(head_dim);
    n_features = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(d * std::log(d))));
  }
}

void PerformerConfig::check(const spec::Scope& scope) const {
  if (head_dim < 1)
    fail(ErrorKind::spec, scope.path, "head_dim = {}; expected at least 1", head_dim);
  if (deterministic() &&
      (n_features != 0 || seed != 0 || rows != FeatureRows::orthogonal || redraw_every != 0))
    fail(ErrorKind::spec, scope.path,
         "n_features, rows, redraw_every and seed say what directions there are, and "
         "relu_deterministic "
         "has none; leave them out");
  if (rows == FeatureRows::hadamard && (head_dim & (head_dim - 1)) != 0)
    fail(ErrorKind::spec, scope.path,
         "head_dim = {} with rows hadamard; expected a power of two, or rows orthogonal", head_dim);
  if (features == RandomFeatures::trigonometric && added() != 0)
    fail(ErrorKind::spec, scope.path,
         "eps = {} with features trigonometric, which have both signs; expected 0", added());
}

void PerformerConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t inner = n_heads * head_dim;
  list.linear("q", inner, scope.d_model, bias.q);
  list.linear("k", inner, scope.d_model, bias.k);
  list.linear("v", inner, scope.d_model, bias.v, spec::Init::content());
  list.linear("o", scope.d_model, inner, bias.o, spec::Init::into_stream(scope.n_layers));
}

std::vector<spec::StateDecl> PerformerConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  return {{"sums", Kind::fixed, {n_heads, phi_width(), head_dim + 1}},
          {"values", Kind::fixed, {n_heads, head_dim + 1}},
          {"maximum", Kind::fixed, {n_heads}}};
}

double PerformerConfig::extra_flops(const spec::Scope&, int64_t) const {
  // scores of q and k, the update of the sums and their reading
  return 4.0 * static_cast<double>(n_heads * n_features * head_dim) +  // 0 without directions
         4.0 * static_cast<double>(n_heads * phi_width() * (head_dim + 1));
}

}  // namespace tessera::nn
