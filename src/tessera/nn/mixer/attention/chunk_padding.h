// The rule of attention in chunks that pads its documents (local_attention, lsh_attention).
#pragma once

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

inline void check_padding(int64_t pad_to, int64_t chunk, const spec::Scope& scope) {
  if (pad_to % chunk != 0)
    fail(ErrorKind::spec, scope.path, "pad_to = {} is no multiple of chunk = {}", pad_to, chunk);
}

}  // namespace tessera::nn
