// Schemes that turn queries and keys by a table of angles, and do nothing else.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/ops/form.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {

/// ops::rotary_table at the positions of a call; `key` names the frequencies.
inline ops::RotaryTable rotary_table(const Tensor& positions_N,
                                     const std::vector<double>& omega,
                                     double factor,
                                     at::ScalarType type,
                                     Context& context,
                                     const std::string& key) {
  if (ops::on_host(positions_N)) return ops::rotary_table(positions_N, omega, factor, type);
  const Tensor omega_R = context.on_device("frequencies of " + key, at::tensor(omega, at::kDouble));
  return ops::rotary_table(positions_N, omega_R, factor, type);
}

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
