// Products of float32 matrices at full speed, in float32 or rounded to bfloat16 or float16, of any
// form: forward (x W^T), the gradient of the input (dy W) and of the weight (dy^T x) differ in
// strides alone.
//
// Goals: the bits of an output follow from its row, its column and k alone, whatever m, n, the
// number of threads and the strides; no transposed copy. Not a goal: the bits of matmul.h, which
// adds up in the lanes of a vector, or a single row at the speed of memory: for training and
// encoders, where no state has to be continued.
//
// Both operands are packed, a in panels of a few rows and b in panels of two vectors, along k, for
// a piece of k at a time; a tile of the output is kept in registers. Goto, van de Geijn 2008, ACM
// TOMS 34(3), 12. In bfloat16 the registers and their products are AMX's tiles where there are some
// (tiles.h).
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// A matrix of which one stride is 1; element (i, j) at data[i * row + j * column].
struct MatrixView {
  const float* data;
  int64_t row, column;
};

/// What the factors of a product are rounded to, each once; they are added up in float32.
enum class ProductType {
  float32,
  bf16,  // two neighbours along k at a time. Below 2^-126 zero where the processor has units for it
  fp16,  // above 65,504 infinite. As fast as float32: what a device will do whose products are such
};

/// out[i * out_stride + j] = sum_p a(i, p) b(p, j) for i < m, j < n, p < k, or += it; with a bias
/// [n] it begins with bias[j], and is not added to. The sum runs over p in order, in pieces of
/// which each is summed for itself. Throws Error(internal) on sizes or strides that do not fit.
void gemm(ProductType type,
          const MatrixView& a,
          const MatrixView& b,
          int64_t m,
          int64_t n,
          int64_t k,
          float* out,
          int64_t out_stride,
          bool add,
          const float* bias = nullptr);

/// Whether this processor has units for bf16 that gemm() uses; elsewhere float32 is faster.
bool has_bf16_units();

/// Whether gemm() of float32 is faster here than libtorch's product: on AMD's processors
/// with AVX-512, whose registers libtorch's library leaves half empty, for large products.
bool gemm_pays(int64_t m, int64_t n, int64_t k);

}  // namespace tessera::kernels
