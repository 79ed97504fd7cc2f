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
  check_rotation(scope);
}

}  // namespace tessera::nn
