// The selective scan of Mamba-1 over one sequence, with its backward pass. float32.
//   delta_t = softplus(dt_t + dt_bias);  h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t
//   y_t = sum_n C_t[n] h_t[n] + D x_t
// Gu, Dao 2023, arXiv:2312.00752. Lanes are channels: a step's bits depend on the state and that
// step alone, so any split of a sequence into calls, and of channels into threads, gives the same
// numbers. Not a goal: complex A.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Tokens between the states that the forward pass keeps for the backward one: both passes then
/// move about as many bytes as the activations have.
inline constexpr int64_t kSelectiveScanChunk = 32;

/// All arrays are dense, the last axis fastest.
struct SelectiveScan {
  int64_t T = 0, E = 0, N = 0;     // tokens, channels, state width
  const float* x = nullptr;        // [T, E]
  const float* dt = nullptr;       // [T, E], before bias and softplus
  const float* dt_bias = nullptr;  // [E]
  const float* A = nullptr;        // [N, E], not positive
  const float* B = nullptr;        // [T, N]
  const float* C = nullptr;        // [T, N]
  const float* D = nullptr;        // [E] or null
  float* state = nullptr;          // [N, E], read and replaced
  float* y = nullptr;              // [T, E]; not x
  float* kept = nullptr;           // [ceil(T / kSelectiveScanChunk), N, E] or null: the state
                                   // before each chunk
};
void selective_scan(const SelectiveScan& scan);
/// Channels [begin, end) alone, on the calling thread.
void selective_scan(const SelectiveScan& scan, int64_t begin, int64_t end);

/// Gradients of sum(y * dy), and of what else reads the last state.
struct SelectiveScanGradient {
  SelectiveScan scan;         // its inputs and `kept`; state and y are not read
  const float* dy = nullptr;  // [T, E]
  float* dx = nullptr;        // [T, E]
  float* ddt = nullptr;       // [T, E]
  // sums over tokens, added to what is there
  float* ddt_bias = nullptr;  // [E]
  float* dA = nullptr;        // [N, E]
  float* dD = nullptr;        // [E] or null
  // sums over the channels of one call, replaced
  float* dB = nullptr;      // [T, N]
  float* dC = nullptr;      // [T, N]
  float* dstate = nullptr;  // [N, E] or null: of the last state, replaced by that of the first
};
/// Channels [begin, end), on the calling thread. dB and dC are partial sums: the caller adds those
/// of its calls, in an order of its own that does not depend on threads.
void selective_scan_backward(const SelectiveScanGradient& gradient, int64_t begin, int64_t end);

}  // namespace tessera::kernels
