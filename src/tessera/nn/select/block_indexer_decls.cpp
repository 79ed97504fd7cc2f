#include "tessera/nn/select/block_indexer.h"

namespace tessera::nn {

void BlockIndexerConfig::check(const spec::Scope& scope) const {
  if (scope.n_heads > 0 && scope.n_heads % n_heads != 0)
    fail(ErrorKind::spec, scope.path,
         "n_heads = {} for a mixer of {} heads; expected a number that divides them", n_heads,
         scope.n_heads);
  if (local > top_k)
    fail(ErrorKind::spec, scope.path, "local = {} of top_k = {} blocks; expected at most as many",
         local, top_k);
  if (rotary_dim != 0 && rotary_dim != scope.rotated)
    fail(ErrorKind::spec, scope.path,
         "rotary_dim = {}, and the rope of the mixer turns {} channels; expected the same number, "
         "whose angles both use",
         rotary_dim, scope.rotated);
  if (rotary_dim > head_dim)
    fail(ErrorKind::spec, scope.path, "rotary_dim = {}; expected at most head_dim = {}", rotary_dim,
         head_dim);
}

void BlockIndexerConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  list.linear("q", n_heads * head_dim, scope.width, false);
  list.linear("k", head_dim, scope.input_width(), false);
  if (!norm) return;
  for (const char* name : {"q_norm", "k_norm"})
    norm.config->params_under(list, name, child_scope(scope, "norm"));
}

std::vector<spec::StateDecl> BlockIndexerConfig::state(const spec::Scope&) const {
  // all bits: rounded ones would choose other blocks
  return {{.name = "index_k", .kind = spec::StateDecl::Kind::per_token, .shape = {head_dim}}};
}

double BlockIndexerConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 2.0 * static_cast<double>(n_heads * head_dim) * static_cast<double>(context);
}

}  // namespace tessera::nn
