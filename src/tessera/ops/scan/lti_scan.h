// Linear time-invariant state-space systems (S4D, S4): their convolution kernels, the convolution
// by FFT, and the recurrence from a state. Gu, Goel, Re 2021, arXiv:2111.00396 (S4); Gu, Gupta,
// Goel, Re 2022, arXiv:2206.11893 (S4D).
#pragma once

#include <utility>

#include "tessera/ops/documents.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// y_t = sum_{s<=t} k_{t-s} u_s in every document, for u [N, H] and k [L, H] with L at least as
/// long as the longest; in u's wide type. Differentiable; a future value changes the past by
/// rounding.
Tensor fft_conv(const Tensor& u_NH, const Tensor& k_LH, const Lengths& lengths);

/// One system per channel after discretisation, in complex128 [H, M], one member of each conjugate
/// pair: x <- E x + G u, or with rank one w = E x - F s(x) + G u, x <- w - F g s(w),
/// s(v) = 2 Re sum conj(P) v;  y = 2 Re sum C x + D u.
struct LtiSystem {
  Tensor decay_HM, gain_HM, out_HM;
  Tensor skip_H;                         // D, real
  Tensor row_HM, column_HM, feedback_H;  // P, F and g (real); undefined for diagonal systems
};

/// Real double tensors of a diagonal state matrix, its steps and outputs: A = (-e^a_log, a_im).
struct DiagonalSystem {
  Tensor log_dt_H, a_log_HM, a_im_HM, c_HM2, skip_H;
  bool bilinear = false;  // else zero-order hold; B = 1
};
LtiSystem discretised(const DiagonalSystem& system);
/// k_l = 2 Re sum_m C G E^l for l < length, [length, H], in double: powers of blocks times powers
/// within a block, so that memory is of order H (length + M sqrt(length)).
Tensor diagonal_kernel(const LtiSystem& system, int64_t length);

/// The same with A = diag - P P^*, B free.
struct DplrSystem {
  Tensor log_dt_H, a_log_HM, a_im_HM, p_HM2, b_HM2, c_HM2, skip_H;
};
/// By the bilinear rule, which keeps the rank.
LtiSystem discretised(const DplrSystem& system);
/// S_k(z) = sum_m w_km / (z - lambda_m) + conj(w_km) / (z - conj(lambda_m)) for four sums k, in
/// complex128 -> [H, 4, L]. Differentiable; on a CPU by a kernel.
Tensor cauchy(const Tensor& lambda_HM, const Tensor& w_H4M, const Tensor& z_HL);
/// The same by ordinary operations.
Tensor cauchy_plain(const Tensor& lambda_HM, const Tensor& w_H4M, const Tensor& z_HL);
/// k_l = C Abar^l Bbar for l < length, [length, H], in double, from its generating function: Cauchy
/// sums at points on a circle inside the unit one, so that what wraps around has died away (1e-13)
/// and no point meets the pole of the bilinear map. Memory is bounded: blocks of points.
Tensor dplr_kernel(const DplrSystem& system, int64_t length);

/// One real system per channel in double, N = 2 M: x <- A x + B u, y = C x + D u, where x holds the
/// real parts of the pairs, then the imaginary ones.
struct DenseLtiSystem {
  Tensor matrix_HNN, gain_HN, out_HN, skip_H;
};
/// By a zero-order hold, which leaves nothing of the structure: the exponential of a matrix of N +
/// 1 rows for every channel, [A B; 0 0] dt, holds both Abar and Bbar, whatever A's inverse.
DenseLtiSystem held(const DplrSystem& system);
/// k_l = C A^l B for l < length, [length, H], in double: powers by squaring, memory of order
/// H N (N + sqrt(length)).
Tensor dense_kernel(const DenseLtiSystem& system, int64_t length);

/// From a state [2, M, H] (real and imaginary parts), token by token, by ordinary operations: y
/// [T, H] and the state after it.
std::pair<Tensor, Tensor> lti_recurrent(const LtiSystem& system,
                                        const Tensor& u_TH,
                                        const Tensor& state_2MH);
std::pair<Tensor, Tensor> lti_recurrent(const DenseLtiSystem& system,
                                        const Tensor& u_TH,
                                        const Tensor& state_2MH);

/// What some tokens are to each other and to the state before and after them, in double.
struct LtiChunk {
  int64_t tokens = 0;
  Tensor within_HLL;  // y_t from u_i
  Tensor read_HLS;    // y_t from the state before, S = 2 M: real and imaginary parts
  Tensor write_HLS;   // the state after from u_i
  Tensor carry_HSS;   // the state after from the one before, a row
};
LtiChunk chunk_of(const LtiSystem& system);
LtiChunk chunk_of(const DenseLtiSystem& system);
/// lti_recurrent, a chunk at a time where there are whole ones.
std::pair<Tensor, Tensor> lti_chunked(const LtiSystem& system,
                                      const LtiChunk& chunk,
                                      const Tensor& u_TH,
                                      const Tensor& state_2MH);
std::pair<Tensor, Tensor> lti_chunked(const DenseLtiSystem& system,
                                      const LtiChunk& chunk,
                                      const Tensor& u_TH,
                                      const Tensor& state_2MH);

/// float32 constants of the kernel below.
struct LtiConstants {
  Tensor decay, gain, out, skip, row, column, feedback;
};
LtiConstants constants_of(const LtiSystem& system);
/// The batch-invariant kernel without gradients; the state is updated in place.
Tensor lti_kernel(const LtiConstants& constants, const Tensor& u_TH, Tensor& state_2MH);

/// The same of dense systems, channels last.
struct DenseLtiConstants {
  Tensor matrix, gain, out, skip;
};
DenseLtiConstants constants_of(const DenseLtiSystem& system);
Tensor lti_kernel(const DenseLtiConstants& constants, const Tensor& u_TH, Tensor& state_2MH);

}  // namespace tessera::ops
