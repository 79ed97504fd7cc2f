// Scans by CUDA kernels (cuda/kernels), with their gradients: what the ops of this folder take
// where the table (form.h) has Form::cuda. Tokens are computed in chunks, in three launches: what
// each chunk makes of nothing, the states between chunks, the output. Memory is linear in tokens.
#pragma once

#include <optional>
#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/scan/rwkv4.h"
#include "tessera/ops/scan/selective_scan.h"
#include "tessera/ops/scan/slstm.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Each returns the output of all documents and the state after the last one, in float32. A state
/// is that before the only document; undefined = documents begin.
std::pair<Tensor, Tensor> channel_scan_cuda(const Tensor& a_TW,
                                            const Tensor& b_TW,
                                            const Lengths& lengths,
                                            const Tensor& state_W = {});
std::pair<Tensor, Tensor> selective_scan_cuda(const SelectiveScan& in,
                                              const Lengths& lengths,
                                              const Tensor& state_NE = {});
std::pair<Tensor, Tensor> wkv4_cuda(const Wkv4& in,
                                    const Lengths& lengths,
                                    const Tensor& state_3C = {});
/// Heads of at most cuda::kSlstmWidest channels.
std::pair<Tensor, Tensor> slstm_cuda(const Slstm& in,
                                     const Lengths& lengths,
                                     const Tensor& state_4D = {});

}  // namespace tessera::ops
