// Softmax attention of whole sequences for training, float32: exact, with memory linear in the
// keys, and gradients by recomputation.
//   s = softcap(scale q.k) + bias[key - query], over visible keys;   o = softmax(s) v
//
// Goals: the speed of matrix products in registers; hidden tiles cost nothing; keys and values of a
// group of heads are read once for all of them; the same bits whatever the threads. A query without
// keys gives 0 and passes no gradient. Not batch-invariant: inference takes attention.h.
// Dao 2023, arXiv:2307.08691 (FlashAttention-2).
#pragma once

#include <cstdint>

#include "tessera/kernels/attention/visibility.h"

namespace tessera::kernels {

/// x[b * batch + t * token + h * head + c].
template <class Float>
struct Heads {
  Float* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;
  Float* row(int64_t b, int64_t t, int64_t h) const {
    return data + b * batch + t * token + h * head;
  }
};
using ConstHeads = Heads<const float>;
using MutableHeads = Heads<float>;

/// Where the random numbers of a query's weights stand: that of head h and key s is number first +
/// h head + s, modulo 2^64, of the stream of `key` (rng.h).
struct DropoutRow {
  uint64_t key = 0, first = 0, head = 0;
};

struct FlashAttention {
  int64_t B = 0, T = 0, S = 0;  // sequences, queries and keys of each
  int64_t H = 0, G = 0;         // query heads and key-value heads; head h reads floor(h G / H)
  int64_t K = 0, V = 0;         // dimension of a key head and of a value head
  ConstHeads q, k, v;
  int64_t first_query = 0, first_key = 0;  // positions

  bool causal = true;
  int64_t window =
      0;  // when positive, query - window < key, and key < query + window if not causal
  const Visibility* visible = nullptr;  // when set it replaces causal and window
  /// [T] or null: the positions of the keys in each query's document, which are all that it sees.
  /// Neither end falls from one query to the next. Not with `visible`, whose positions are those in
  /// a document.
  const KeyRange* documents = nullptr;
  float scale = 1;
  float softcap = 0;  // 0: none
  /// Added: bias[h * bias_head_stride + clamp(bias_zero + key - query, 0, bias_size - 1)].
  const float* bias = nullptr;
  int64_t bias_head_stride = 0, bias_zero = 0, bias_size = 0;
  const float* sinks = nullptr;  // [H]: a logit that joins each head's denominator

  /// Weights, after the softmax, are zeroed with probability dropout_limit / 2^32 and multiplied by
  /// dropout_scale otherwise.
  uint32_t dropout_limit = 0;
  float dropout_scale = 1;
  const DropoutRow* dropout = nullptr;  // [B, T], where the limit is not 0
};

/// out [B, T, H, V]; lse [B, H, T]: log of each row's sum of exponentials, sink included; minus
/// infinity where there is none.
void flash_forward(const FlashAttention& attention, MutableHeads out, float* lse);

struct FlashGradients {
  ConstHeads out, d_out;  // what flash_forward gave, and its gradient
  const float* lse = nullptr;
  MutableHeads dq, dk, dv;
  float* d_bias = nullptr;   // [H, bias_size], one row per head whatever bias_head_stride; or null
  float* d_sinks = nullptr;  // [H], or null
};

/// Writes every gradient (it does not add).
void flash_backward(const FlashAttention& attention, const FlashGradients& gradients);

}  // namespace tessera::kernels
