// Conversion of padded tensors: [B, T] with a mask in, ragged inside, [B, T, ...] out.
#pragma once

#include "tessera/nn/batch.h"

namespace tessera::model {

/// The tokens with mask 1 as one segment per row. mask_BT, positions, types_BT and global_BT
/// (tokens that are global in addition to the pattern's own) may be undefined. Positions are [B,T],
/// or [3,B,T] in time, height and width; if undefined, a row's tokens count from 0, also after
/// padding on the left. Throws Error(input) for a different shape, a row without tokens, or a 0 in
/// the mask between tokens of a row.
nn::Batch from_padded(const Tensor& ids_BT,
                      const Tensor& mask_BT,
                      const Tensor& positions = {},
                      const Tensor& types_BT = {},
                      const Tensor& global_BT = {});

/// Sets the number of prefix tokens of every row (nn::Segment::prefix); lengths_B int64. Throws
/// Error(input) unless each is 0 to the tokens of its row.
void set_prefixes(nn::Batch& batch, const Tensor& lengths_B);

/// x_N... back to [B, T, ...]; padding is 0.
Tensor to_padded(const Tensor& x_N, const Tensor& ids_BT, const Tensor& mask_BT);

}  // namespace tessera::model
