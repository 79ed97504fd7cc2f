// Attention by positive random features (FAVOR+) of one sequence, float32.
//   phi(q_i) = exp(s - |q|^2 / 2 - max s) + eps,  s = W q;   keys alike, with one maximum for all
//   o_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j)
//
// Causal sums use the largest score so far: what was summed is scaled when it grows, so that the
// numbers are those of the sequence seen and nothing of the future leaks. A token's bits depend on
// the state and that token alone. All arrays are dense, the last axis fastest.
#pragma once

#include <cstdint>

namespace tessera::kernels {

struct FavorScan {
  int64_t T = 0, H = 0, K = 0, M = 0, V = 0;
  const float* q = nullptr;         // [T, H, K], scaled by K^-1/4
  const float* k = nullptr;         // [T, H, K], scaled likewise
  const float* v = nullptr;         // [T, H, V]
  const float* q_scores = nullptr;  // [T, H, M]: W q
  const float* k_scores = nullptr;  // [T, H, M]: W k
  bool exponential = true;          // else phi = max(s, 0) + eps, without norms and maxima,
  bool rectified = true;            // or, where this is false, phi = s + eps
  bool causal = true;               // else every query sees all T keys
  float eps = 0;
  float factor = 1;  // on the products phi(q) . phi(k): 1 / M makes them estimates of exp(q . k)
  // Of the keys before, read and replaced; count 0 in values[V] = none. Not causal: work memory,
  // zero at first.
  float* sums = nullptr;     // [H, M, V + 1]: sum of exp(..) v, and of exp(..)
  float* values = nullptr;   // [H, V + 1]: sum of v, and their count
  float* maximum = nullptr;  // [H]
  float* out = nullptr;      // [T, H, V]
};
void favor_scan(const FavorScan& scan);

}  // namespace tessera::kernels
