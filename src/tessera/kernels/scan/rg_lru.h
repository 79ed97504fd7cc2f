// The real-gated linear recurrent unit (RG-LRU) over one sequence, with its backward pass. float32.
//   i = sigmoid(in), r = sigmoid(rec), l = -scale r, a = e^l, m = sqrt(1 - a^2)
//   h_t = a_t h_{t-1} + m_t i_t x_t;   a document's first token: h = i x
// De, Smith et al. 2024, arXiv:2402.19427. Lanes are channels: a step's bits depend on the state
// and that step alone.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// The derivative of m is bounded: 1 / m counts as at most this, where a is nearly 1.
inline constexpr float kRgLruSteepest = 2000;

/// All arrays are dense, the last axis fastest.
struct RgLru {
  int64_t T = 0, W = 0;
  const float* x = nullptr;      // [T, W]
  const float* in = nullptr;     // [T, W], the input gate before its sigmoid
  const float* rec = nullptr;    // [T, W], the recurrence gate before its sigmoid
  const float* scale = nullptr;  // [W], 8 softplus(lambda)
  bool fresh = false;            // the first token is its document's first
  float* state = nullptr;        // [W], read unless fresh, and replaced
  float* y = nullptr;            // [T, W]: h; not an input
};
void rg_lru(const RgLru& lru);
/// Channels [begin, end) alone, on the calling thread.
void rg_lru(const RgLru& lru, int64_t begin, int64_t end);

/// Gradients of sum(y * dy), and of what else reads the last state.
struct RgLruGradient {
  RgLru lru;                     // its inputs, fresh and y; the state is not read
  const float* dy = nullptr;     // [T, W]
  float* dx = nullptr;           // [T, W]
  float* din = nullptr;          // [T, W]
  float* drec = nullptr;         // [T, W]
  float* dscale = nullptr;       // [W], added to what is there
  const float* start = nullptr;  // [W], the state before the first token; null if that is fresh
  float* dstate = nullptr;       // [W] or null: of the last state, replaced by that of the first
};
/// Channels [begin, end), on the calling thread.
void rg_lru_backward(const RgLruGradient& gradient, int64_t begin, int64_t end);

}  // namespace tessera::kernels
