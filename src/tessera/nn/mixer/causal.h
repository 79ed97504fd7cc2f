// The error of every causal mixer in an encoder.
#pragma once

#include <string_view>

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

/// Throws Error(spec) in an encoder; `instead`: mechanisms allowed there.
inline void require_causal(const spec::Scope& scope,
                           std::string_view name,
                           std::string_view instead = "attention or fourier") {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path, "{} is causal and cannot stand in an encoder; use {} there",
         name, instead);
}

}  // namespace tessera::nn
