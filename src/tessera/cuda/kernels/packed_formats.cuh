// The block formats of weights that kernels read: those of packed_formats.def.
#pragma once

#include "tessera/cuda/kernels/packed_books.cuh"
#include "tessera/cuda/kernels/packed_large.cuh"
#include "tessera/cuda/kernels/packed_small.cuh"
