// The code books of IQ1, IQ2 and IQ3 (kernels/weights/codebooks.h) where kernels read them: a GPU
// has a copy in its global memory, since threads of a warp read unlike entries.
#pragma once

#ifdef __CUDACC__
#include "tessera/kernels/weights/codebooks_inl.h"
#endif

#include "tessera/cuda/block.h"
#include "tessera/kernels/weights/codebooks.h"

namespace tessera::cuda {

#ifdef __CUDACC__
__device__ constexpr kernels::CodeBooks kBooks = kernels::made_code_books();
#else
inline constexpr const kernels::CodeBooks& kBooks = kernels::kCodeBooks;
#endif

}  // namespace tessera::cuda
