// Log-linear attention over state-space duality (Mamba-2): the past of a token in blocks of 1, 2,
// 4, ... tokens, each with a state and a weight. Guo et al. 2025, arXiv:2506.04761.
//
// Token s of the past of token t has level 0 if s = t, else one more than the highest bit in which
// s and t differ: the blocks of a Fenwick tree. t reads at most one block of each level, and after
// t tokens there is a block of level b + 1 for every bit b that is set in t.
#pragma once

#include <utility>

#include "tessera/ops/scan/mamba2.h"

namespace tessera::ops {

/// y_t = sum_{s <= t} w_t,level(s,t) exp(sum_{s < r <= t} dt_r A) (C_t B_s) dt_s x_s + D x_t.
struct LogLinear {
  Ssd of;
  Tensor weights_BTHL;   // of the levels; documents have at most 2^(L - 1) tokens
  int64_t start = 0;     // tokens of the document before these
  Tensor state_BLHPN{};  // its blocks, place b that of level b + 1: L - 1 of them; undefined: zeros
};

/// Quadratic inside chunks of `chunk` tokens, rounded down to a power of two, and a tree of chunks
/// above: T log T. Takes documents of a batch where it begins them. Returns y_BTHP.
Tensor log_linear_y(const LogLinear& in, int64_t chunk);
/// The blocks after the tokens.
Tensor log_linear_state(const LogLinear& in);

/// Token after token for B = 1 in float32 without gradients, so that any split of a document into
/// calls gives the same bits; state_LHPN is updated in place. Returns y_BTHP.
Tensor log_linear_scan(const LogLinear& in, Tensor& state_LHPN);

/// What log_linear_scan() does with one token of one head, on this thread: P channels of states of
/// N.
struct LogLinearToken {
  int64_t P = 0, N = 0, levels = 0;
  int64_t place = 0;               // tokens of the document before it
  const float* x = nullptr;        // [P]
  const float* dt = nullptr;       // of the head, as A and D are
  const float* A = nullptr;        // negative
  const float* D = nullptr;        // null: none
  const float* B = nullptr;        // [N]
  const float* C = nullptr;        // [N]
  const float* weights = nullptr;  // [levels]
  float* state = nullptr;          // block b: [P, N] from b * block_stride on
  int64_t block_stride = 0;
  float* y = nullptr;  // [P]
};
void log_linear_token(const LogLinearToken& token);

}  // namespace tessera::ops
