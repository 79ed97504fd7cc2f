// The sLSTM cell of xLSTM over one sequence, with its backward pass. float32.
//   g = pre_g + R_g h_{t-1} for g in i, f, z, o;  m_t = max(log sigmoid(f) + m_{t-1}, i)
//   c_t = f' c_{t-1} + i' tanh(z), n_t = f' n_{t-1} + i', h_t = sigmoid(o) c_t / n_t
// with f' = e^{log sigmoid(f) + m_{t-1} - m_t}, i' = e^{i - m_t}; at a document's first token m =
// i. Beck et al. 2024, arXiv:2405.04517. R is block-diagonal by heads; heads are independent. A
// step's bits depend on the state and that step alone.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// D = H P. All arrays are dense, the last axis fastest; gates are in the order i, f, z, o.
struct Slstm {
  int64_t T = 0, H = 0, P = 0;
  const float* pre = nullptr;  // [T, 4, D]
  const float* r = nullptr;    // [4, D, P]: row h P + o of gate g meets head h's inputs
  bool fresh = false;          // the first token is its document's first
  float* state = nullptr;      // [4, D]: h, c, n, m; read unless fresh, and replaced
  float* y = nullptr;          // [T, D]: h
  // for the backward pass, or null
  float* gates = nullptr;  // [T, 4, D]: the arguments of the activations
  float* cells = nullptr;  // [T, 3, D]: c, n, m after each token
};
void slstm(const Slstm& cell);
/// Heads [begin, end) alone, on the calling thread.
void slstm(const Slstm& cell, int64_t begin, int64_t end);

/// Gradients of sum(y * dy), and of what else reads the last state. That of r follows from dgates
/// and y. m counts as a constant, for h does not depend on it.
struct SlstmGradient {
  Slstm cell;                    // r, fresh, y, gates and cells
  const float* dy = nullptr;     // [T, D]
  float* dgates = nullptr;       // [T, 4, D]: also the gradient of pre
  const float* start = nullptr;  // [4, D], the state before the first token; null if that is fresh
  float* dstate = nullptr;       // [4, D] or null: of the last state, replaced by that of the first
};
/// Heads [begin, end), on the calling thread.
void slstm_backward(const SlstmGradient& gradient, int64_t begin, int64_t end);

}  // namespace tessera::kernels
