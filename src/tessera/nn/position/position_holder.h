// A mixer that rotates with a position scheme of its own: how a model finds all its schemes, to
// know how long a sequence may be and whether its angles change on the way.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct PositionHolder {
  virtual ~PositionHolder() = default;
  /// May be empty.
  virtual const spec::AnyPart& held_position() const = 0;
};

}  // namespace tessera::nn
