// When tessera-tensors opens libtorch, which takes 0.1 s and 110 MB.
#pragma once

namespace tessera::cli {

/// Opens libtorch at its first call that ops/light_tensor.h does not serve: inference of a model
/// whose parts have decoding steps and kernels makes none. The number of threads set before holds.
void open_torch_when_called();

/// Opens libtorch. Throws Error(file) if it cannot be opened.
void open_torch();

}  // namespace tessera::cli
