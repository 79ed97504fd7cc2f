// Attention of one sequence that lies in parts on the ranks of a ring. Every rank keeps its queries
// and attends to one block of keys after another, which go round: at step s rank a holds the block
// of rank a - s. The partial results are merged by their sums of exponentials (attention_merge.h).
// The gradients take the same way round; those of keys and values travel with their block.
//   dS = P o (dO V^T - delta),  P = exp(S - L),  delta = sum_d dO o O - dL:  O and L of all keys
// Liu, Zaharia, Abbeel 2023, arXiv:2310.01889 (contiguous); Brandon et al. 2023, arXiv:2311.09431
// (striped). Only the G heads of keys and values travel, not one per query head.
//
// A rank computes what RingRank and ring_forward say, with a transport of two functions. Here all
// ranks are simulated in one process (LocalRing); a process of a real ring passes its one rank.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/ring_order.h"

namespace tessera::ops {

/// Keys and values of a rank on their way round; on the way back with what their gradients have
/// become so far.
struct RingBlock {
  int64_t owner = 0;
  Tensor k_BNGK, v_BNGV, dk, dv;
};

/// The links of one rank.
class Ring {
 public:
  virtual ~Ring() = default;
  virtual int64_t rank() const = 0;
  /// Hands a block to the next rank; returns before that has received it.
  virtual void send(const RingBlock& block) = 0;
  /// The next block of the rank before; waits for it where the transport can.
  virtual RingBlock receive() = 0;
};

/// All ranks in this process: what is sent is copied into a mailbox of the receiver.
class LocalRing {
 public:
  explicit LocalRing(int64_t ranks);
  Ring& at(int64_t rank) { return *links_.at(static_cast<size_t>(rank)); }

 private:
  std::vector<std::deque<RingBlock>> mail_;
  std::vector<std::unique_ptr<Ring>> links_;
};

/// What one rank holds: its rows of queries, keys and values, [B, rows, heads, width].
struct RingRank {
  Ring* ring = nullptr;
  Tensor q_BNHK, k_BNGK, v_BNGV;
};

/// Gradients of one rank: its own rows, and its part of those that all ranks share, to be summed
/// over them. Undefined: no part.
struct RingGradients {
  Tensor dq, dk, dv, d_sinks, d_bias;
  std::vector<Tensor> d_inputs;  // of the term's inputs
};

/// The ranks of this process, in step; each one's result, out [B, H, rows, V] and lse [B, H, rows],
/// 0 and -inf in padding. By tiles where tiles_serve(q, options), else by the definition. Throws
/// Error(internal) where options hold far queries or dropout.
std::vector<PartialAttention> ring_forward(const std::vector<RingRank>& ranks,
                                           const RingOrder& order,
                                           const ScoreOptions& options);

/// From their results and the gradients of these (d.lse may be undefined).
std::vector<RingGradients> ring_backward(const std::vector<RingRank>& ranks,
                                         const RingOrder& order,
                                         const ScoreOptions& options,
                                         const std::vector<PartialAttention>& results,
                                         const std::vector<PartialAttention>& d);

/// The same as attention of whole sequences without a past, q_BTHD, k and v_BTGD, by the ranks of
/// `order` in this process: out [B, T, H, V] of q's type, lse [B, H, T]. Differentiable in
/// everything.
PartialAttention ring_attention(const Tensor& q_BTHD,
                                const Tensor& k_BTGD,
                                const Tensor& v_BTGD,
                                const RingOrder& order,
                                const ScoreOptions& options);

}  // namespace tessera::ops
