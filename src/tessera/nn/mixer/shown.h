// What mixers show of themselves to a probe that names it.
#pragma once

#include "tessera/nn/context.h"

namespace tessera::nn {

/// Whether `name` is asked for: what costs as much as the mixer itself is not made for a probe that
/// looks at everything.
inline bool is_asked_for(const Context& context, const std::string& name) {
  return context.probe.wants(name) && !context.probe.wants("");
}

}  // namespace tessera::nn
