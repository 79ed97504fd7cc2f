// What codes of block types stand for, as tensors on a device: the tables of the CPU's kernels, for
// torch's operations (unpack.h).
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// All float32.
struct LookupTables {
  // [256, 2]: of the codes in the low and in the high half of a byte
  Tensor levels;      // of iq4_nl and iq4_xs
  Tensor twice_e2m1;  // of mxfp4
  // [256, 1]: of a byte
  Tensor half_of_e8m0;
  Tensor e4m3;
  // [entries, 8] or [entries, 4]; those of iq1 are -1, 0 and 1
  Tensor iq2_xxs, iq2_xs, iq2_s, iq1, iq3_xxs, iq3_s;
  // [128, 8] and [256, 8]: 1, or -1 where a number is negative
  Tensor even_signs, signs;
};

/// About 160 KB, made at the first call for each device and kept as long as the process.
const LookupTables& lookup_tables(at::Device device);

}  // namespace tessera::ops
