// Gradients of the linear recurrence of linear_recurrence.h, by products of chunks of tokens: the
// states before chunks are recomputed from checkpoints, and the gradient of the state runs
// backwards through them. Not batch-invariant, nor need it be: a training step is one call.
#pragma once

#include "tessera/kernels/linear/linear_recurrence.h"

namespace tessera::kernels {

/// Arrays as in LinearRecurrence; those of inputs that are null there are ignored. All are outputs,
/// except those marked as read.
struct LinearRecurrenceGradients {
  int64_t interval = 0;                // tokens between checkpoints
  const float* checkpoints = nullptr;  // [ceil(T / interval), H, K, V]: states before a block; read
  const float* dy = nullptr;           // [T, H, V], read
  float* dstate = nullptr;  // [H, K, V]: read as that of the last state, left as that of the first
  int64_t summed = 1;       // heads in a row whose dq and dk are summed; divides H / G
  float* dq = nullptr;      // [T, H / summed, K]
  float* dk = nullptr;      // [T, H / summed, K]
  float* dv = nullptr;      // [T, H, V]
  float* dlog_decay = nullptr;  // [T, H] or [T, H, K]; a decay per head has none
  float* dbeta = nullptr;       // [T, H]
  float* da = nullptr;          // [T, H, K]
  float* db = nullptr;          // [T, H, K]
  float* dbonus = nullptr;      // [H, K]
  float* drate = nullptr;       // [T, H]
  float* dskip = nullptr;       // [T, H]: each token's share
};
/// r.state and r.y are not used. Throws Error(internal) when `interval` or `summed` make no sense.
void linear_recurrence_backward(const LinearRecurrence& r, const LinearRecurrenceGradients& g);

}  // namespace tessera::kernels
