// The weighted key-value average of RWKV-4 over one sequence, with its backward pass. float32.
//   y_t = (sum_{i<t} e^{(t-1-i) w + k_i} v_i + e^{u+k_t} v_t) / (the same with v = 1)
// Peng et al. 2023, arXiv:2305.13048. Sums are kept as (num, den, top): num e^top and den e^top, so
// that no exponent is positive. Lanes are channels: a step's bits depend on the state and that step
// alone.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Tokens between the states that the forward pass keeps for the backward one.
inline constexpr int64_t kWkv4Chunk = 32;

/// All arrays are dense, the last axis fastest.
struct Wkv4 {
  int64_t T = 0, C = 0;
  const float* w = nullptr;  // [C], log of the decay, negative
  const float* u = nullptr;  // [C], bonus of the present
  const float* k = nullptr;  // [T, C]
  const float* v = nullptr;  // [T, C]
  bool fresh = false;        // the first token is its document's first
  float* state = nullptr;    // [3, C]: num, den, top; read unless fresh, and replaced
  float* y = nullptr;        // [T, C]; not an input
  float* kept = nullptr;     // [ceil(T / kWkv4Chunk), 3, C] or null: the state before each chunk
};
void wkv4(const Wkv4& wkv);
/// Channels [begin, end) alone, on the calling thread.
void wkv4(const Wkv4& wkv, int64_t begin, int64_t end);

/// Gradients of sum(y * dy), and of what else reads the last state. top counts as a constant.
struct Wkv4Gradient {
  Wkv4 wkv;                   // its inputs, y and `kept`; with dstate, also the last state
  const float* dy = nullptr;  // [T, C]
  float* dk = nullptr;        // [T, C]
  float* dv = nullptr;        // [T, C]
  float* dw = nullptr;        // [C], added to what is there
  float* du = nullptr;        // [C], added to what is there
  float* dstate = nullptr;    // [3, C] or null: of the last state, replaced by that of the first
};
/// Channels [begin, end), on the calling thread.
void wkv4_backward(const Wkv4Gradient& gradient, int64_t begin, int64_t end);

}  // namespace tessera::kernels
