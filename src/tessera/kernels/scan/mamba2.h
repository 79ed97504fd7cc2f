// The Mamba-2 recurrence (SSD) of one sequence. float32; a step's bits depend on the state and that
// step alone, so any split of a sequence into calls gives the same numbers.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// S_t = exp(dt_t A) S_{t-1} + dt_t x_t (outer) B_t;   y_t = S_t C_t + D x_t,  per head.
/// Dao, Gu 2024, arXiv:2405.21060. All arrays are dense, the last axis fastest.
struct SsdScan {
  int64_t T = 0, H = 0, P = 0, G = 0, N = 0;  // head h reads group h / (H / G) of B and C
  const float* x = nullptr;                   // [T, H, P]
  const float* dt = nullptr;                  // [T, H], after softplus and clamp
  const float* A = nullptr;                   // [H], negative
  const float* B = nullptr;                   // [T, G, N]
  const float* C = nullptr;                   // [T, G, N]
  const float* D = nullptr;                   // [H] or null
  float* state = nullptr;                     // [H, P, N], read and replaced
  float* y = nullptr;                         // [T, H, P]; not x
};
/// Throws Error(internal) unless G divides H.
void ssd_scan(const SsdScan& scan);

}  // namespace tessera::kernels
