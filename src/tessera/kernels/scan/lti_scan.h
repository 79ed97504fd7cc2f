// Time-invariant state-space recurrences of one sequence: diagonal (S4D) and diagonal plus rank one
// (S4), complex states in conjugate pairs of which one member is kept; and real dense ones (S4
// under a zero-order hold). One independent system per channel, float32. Lanes are channels: a
// step's bits depend on the state and that step alone.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Complex arrays are [2, M, H]: real parts, then imaginary parts. All are dense.
struct LtiScan {
  int64_t T = 0, H = 0, M = 0;   // tokens, channels, pairs of state dimensions
  const float* u = nullptr;      // [T, H]
  const float* decay = nullptr;  // E [2, M, H]
  const float* gain = nullptr;   // G [2, M, H], or null for ones
  const float* out = nullptr;    // C [2, M, H]
  const float* skip = nullptr;   // D [H]
  // rank one, null for diagonal systems
  const float* row = nullptr;       // P [2, M, H]
  const float* column = nullptr;    // F [2, M, H]
  const float* feedback = nullptr;  // g [H]
  float* state = nullptr;           // x [2, M, H], read and replaced
  float* y = nullptr;               // [T, H]; not u
};
/// x <- E x + G u, or with rank one: w = E x - F s(x) + G u, x <- w - F g s(w), where
/// s(v) = 2 Re sum conj(P) v;   y = 2 Re sum C x + D u.
void lti_scan(const LtiScan& scan);

/// x <- A x + B u, y = C x + D u with N real dimensions, N even.
struct DenseLtiScan {
  int64_t T = 0, H = 0, N = 0;    // tokens, channels, dimensions of a state
  const float* u = nullptr;       // [T, H]
  const float* matrix = nullptr;  // A [N, N, H]
  const float* gain = nullptr;    // B [N, H]
  const float* out = nullptr;     // C [N, H]
  const float* skip = nullptr;    // D [H]
  float* state = nullptr;         // x [N, H], read and replaced
  float* y = nullptr;             // [T, H]; not u
};
void dense_lti_scan(const DenseLtiScan& scan);

}  // namespace tessera::kernels
