// Rotation of queries and keys by tables of cosines and sines.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct RotaryTable {
  Tensor cos_NR, sin_NR;  // [N, r/2], float32 or double, the factor included
};

/// Angles positions_N * omega in double, then cos and sin times `factor`, rounded once.
RotaryTable rotary_table(const Tensor& positions_N,
                         const std::vector<double>& omega,
                         double factor,
                         at::ScalarType type);

/// The same from omega as a tensor, float64 on the device of the positions, without a copy from the
/// host.
RotaryTable rotary_table(const Tensor& positions_N,
                         const Tensor& omega_R,
                         double factor,
                         at::ScalarType type);

/// x_NHD with the first r channels of every head rotated; pairs (m, m + r/2), or (2m, 2m + 1) when
/// interleaved. Kernels write over an x without other references.
Tensor rope(Tensor x_NHD, const RotaryTable& table, bool interleaved);

}  // namespace tessera::ops
