// Schemes that turn queries and keys by a table of angles, and do nothing else.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {

/// Subclasses define rotation().
class Rotary : public Position {
 public:
  bool only_rotates() const final { return true; }
  Tensor rotate(Tensor x_NHD, Side side, Context& context) const final {
    const Rotation turn = rotation(side, x_NHD.size(2), ops::wide(x_NHD), context);
    return ops::rope(std::move(x_NHD), *turn.table, turn.interleaved);
  }
};

}  // namespace tessera::nn
