#include "tessera/nn/select/index_heads.h"

namespace tessera::nn {

void IndexHeadsConfig::check_rotation(const spec::Scope& scope) const {
  if (rotary_dim != 0 && rotary_dim != scope.rotated)
    fail(ErrorKind::spec, scope.path,
         "rotary_dim = {}, and the rope of the mixer turns {} channels; expected the same number, "
         "whose angles both use",
         rotary_dim, scope.rotated);
  if (rotary_dim > head_dim)
    fail(ErrorKind::spec, scope.path, "rotary_dim = {}; expected at most head_dim = {}", rotary_dim,
         head_dim);
}

void IndexHeadsConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.width, false);
  list.linear("k", head_dim, scope.input_width(), false);
}

std::vector<spec::StateDecl> IndexHeadsConfig::state(const spec::Scope&) const {
  // all bits: rounded ones would choose other keys
  return {{.name = "index_k", .kind = spec::StateDecl::Kind::per_token, .shape = {head_dim}}};
}

double IndexHeadsConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 2.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(context);
}

void BlockIndexConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  IndexHeadsConfig::params(list, scope);
  if (!norm) return;
  for (const char* name : {"q_norm", "k_norm"})
    norm.config->params_under(list, name, child_scope(scope, "norm"));
}

}  // namespace tessera::nn
