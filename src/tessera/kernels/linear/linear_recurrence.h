// Linear recurrences of one sequence: per head a matrix state that decays, may be corrected along
// one direction, and takes in one outer product per token. The state of linear attention, RetNet,
// GLA, DeltaNet, RWKV and their kin; what differs between them are the pointers that are set.
// float32; a step's bits depend on the state and that step alone, so any split of a sequence into
// calls gives the same numbers.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// What the logarithm of the decay belongs to.
enum class DecayPer { nothing, head, token, channel };

/// Per head, with state S [K, V] and d_t = exp(log_decay_t):
///   plain:           S_t = d_t o S_{t-1} + k_t v_t^T
///   delta rule:      P = d_t o S_{t-1};  S_t = P + beta_t k_t (v_t - P^T k_t)^T
///   rank one:        S_t = d_t o S_{t-1} + b_t (S_{t-1}^T a_t)^T + k_t v_t^T
///   y_t = S_t^T q_t, or with a bonus  y_t = S_{t-1}^T q_t + (q_t . (bonus o k_t)) v_t
/// With `rate` set v_t is rate_t v_t; with `skip`, skip v_t is added to y_t. All arrays are
/// dense, the last axis fastest.
struct LinearRecurrence {
  int64_t T = 0, H = 0, K = 0, V = 0;
  int64_t G = 0;             // heads of q and k, of which head h reads h / (H / G); 0: H
  const float* q = nullptr;  // [T, G, K]
  const float* k = nullptr;  // [T, G, K]
  const float* v = nullptr;  // [T, H, V]
  DecayPer decay = DecayPer::nothing;
  const float* log_decay = nullptr;  // [H], [T, H] or [T, H, K]; at most 0
  const float* beta = nullptr;       // [T, H]: the delta rule
  const float* a = nullptr;          // [T, H, K]: rank one, with b
  const float* b = nullptr;          // [T, H, K]
  const float* bonus = nullptr;      // [H, K]; plain only
  const float* rate = nullptr;       // [T, H]
  const float* skip = nullptr;       // [H]; of the v that is given
  float* state = nullptr;            // [H, K, V], read and replaced
  float* y = nullptr;                // [T, H, V]; overlaps no input
  float* kept = nullptr;  // [ceil(T / interval), H, K, V] or null: the state before each interval
  int64_t interval = 0;

  /// Heads of q and k, the one that head h reads, and its row at token t.
  int64_t shared_heads() const { return G == 0 ? H : G; }
  int64_t shared_head(int64_t h) const { return G == 0 ? h : h / (H / G); }
  int64_t shared_row(int64_t t, int64_t h) const { return t * shared_heads() + shared_head(h); }
};
/// Throws Error(internal) when more than one of beta, a with b, and bonus is set, and unless G
/// divides H.
void linear_recurrence(const LinearRecurrence& r);

/// The same in chunks of tokens, in two thirds of the operations (Dao, Gu 2024, arXiv:2405.21060,
/// section 6), for the plain rule where channels share their decays. A token's bits depend on what
/// comes before it in the call, not on the rest; those of a split sequence differ by rounding. A
/// null state: zeros at first, and the last one is dropped.
bool has_chunked_form(const LinearRecurrence& r);
/// Throws Error(internal) unless r has that form, and unless G divides H.
void linear_recurrence_chunked(const LinearRecurrence& r);

}  // namespace tessera::kernels
