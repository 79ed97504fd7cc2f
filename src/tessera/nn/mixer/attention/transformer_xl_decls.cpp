#include "tessera/nn/mixer/attention/transformer_xl.h"

#include <algorithm>

namespace tessera::nn {

void TransformerXlConfig::check(const spec::Scope& scope) const {
  SegmentConfig::check(scope);
  if (same_length && mem_len == 0)
    fail(ErrorKind::spec, scope.path,
         "same_length gives every query mem_len = 0 keys; give a longer mem_len");
  if (init_mem == MemoryStart::zeros && by_place())
    fail(ErrorKind::spec, scope.path,
         "init_mem \"zeros\" stands before position 0, which {} has no entry for; use init_mem "
         "\"empty\", or a position by distance such as xl",
         position.type());
}

}  // namespace tessera::nn
