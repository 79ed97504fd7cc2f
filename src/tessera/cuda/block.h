// What a CUDA kernel is written with: one source, which nvcc compiles for GPUs and g++ for tests
// (emulation.h).
//
// A kernel is a struct:
//   struct Example {
//     static constexpr int kThreads = 128;    // threads of a block
//     static constexpr int kRegisters = 40;   // of a thread at most; ptxas_test.cpp holds it
//     struct Arguments { const float* x; float* y; int64_t n; };  // plain data, passed by value
//     // shared memory of a block, up to 48 KiB
//     struct Shared { float sums[kThreads]; };
//     template <class Block>
//     TESSERA_DEVICE static void run(Block& block, Shared& shared, const Arguments& in) {
//       typename Block::template PerThread<float> sum;            // a variable of each thread
//       block.each([&](int thread) { ... sum[thread] ...; });     // a phase; a barrier follows
//       block.each([&](int thread) { ... });
//     }
//   };
// Code outside of each() runs in all threads alike: it may depend on the block and the arguments,
// not on a thread, and must not write memory. Within a phase no thread may read what another one
// writes. There are neither warp functions nor atomics, so results do not depend on the order of
// threads and blocks.
#pragma once

#ifdef __CUDACC__
#define TESSERA_DEVICE __device__ __forceinline__
#else
#include <cmath>

#define TESSERA_DEVICE inline
#endif

#include <cstdint>

namespace tessera::cuda {

#ifdef __CUDACC__

/// The block that a thread of a GPU is in.
class DeviceBlock {
 public:
  template <class T>
  class PerThread {
   public:
    TESSERA_DEVICE T& operator[](int) { return value_; }

   private:
    T value_;
  };

  TESSERA_DEVICE int64_t x() const { return blockIdx.x; }
  TESSERA_DEVICE int64_t y() const { return blockIdx.y; }
  TESSERA_DEVICE int64_t z() const { return blockIdx.z; }

  template <class Phase>
  TESSERA_DEVICE void each(const Phase& phase) const {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
};

TESSERA_DEVICE float exp(float x) {
  return ::expf(x);
}
TESSERA_DEVICE float log1p(float x) {
  return ::log1pf(x);
}
TESSERA_DEVICE float tanh(float x) {
  return ::tanhf(x);
}
TESSERA_DEVICE float sqrt(float x) {
  return ::sqrtf(x);
}
TESSERA_DEVICE float larger(float x, float y) {
  return ::fmaxf(x, y);
}

#else

TESSERA_DEVICE float exp(float x) {
  return std::exp(x);
}
TESSERA_DEVICE float log1p(float x) {
  return std::log1p(x);
}
TESSERA_DEVICE float tanh(float x) {
  return std::tanh(x);
}
TESSERA_DEVICE float sqrt(float x) {
  return std::sqrt(x);
}
TESSERA_DEVICE float larger(float x, float y) {
  return std::fmax(x, y);
}

#endif

TESSERA_DEVICE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
TESSERA_DEVICE float sigmoid(float x) {
  return 1 / (1 + exp(-x));
}
TESSERA_DEVICE float softplus(float x) {
  return x > 20 ? x : log1p(exp(x));
}

/// Blocks of `width` that cover n; also of the host.
constexpr int64_t blocks_of(int64_t n, int64_t width) {
  return (n + width - 1) / width;
}

}  // namespace tessera::cuda
