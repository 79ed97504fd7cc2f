// Products of rows with the rows of a table that an index names: what queries and keys have to do
// with vectors of their distance.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y_ts = x_t . rows[index_ts]: x [B, H, T, D], rows [R, D] or [H, R, D], index [T, S] int64 ->
/// [B, H, T, S]. Only rows between the least and the greatest index are multiplied. Where
/// Form::kernel serves x, an element's bits depend on its two rows alone.
Tensor products_at(const Tensor& x_BHTD, const Tensor& rows, const Tensor& index_TS);

}  // namespace tessera::ops
