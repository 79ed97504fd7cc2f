// Pooled indexer: block-sparse attention whose blocks of keys are chosen by the mean of their index
// keys (Qwen sparse attention, QSA). Index heads with one key for each complete block of keys score
// the blocks of every query, and all heads of the main attention read those of greatest score.
//   qI = R_t N(W_q c) per head;  kI_b = R_{b size} N(mean of W_k x over the `size` tokens of block
//   b) I_tb = sum_h max(0, head_dim^-1/2 qI_th . kI_b) S_t = the min(top_k, floor((t + 1) / size))
//   complete blocks of greatest I_tb, and the keys s <= t
//         after the last complete one
// R_p rotates the first rotary_dim channels as at position p. A block is complete with its last
// key, also for that key's query. Blocks begin with the document; of equal ones the earlier wins.
// c: what the mixer's queries are projected from. A state keeps kI of every block, and W_k x of the
// last size - 1 tokens. Qwen Team 2026 (Qwen4-Exp).
//
// No gradient passes the choice: in training the indexer learns from a loss of its own alone,
// kl_loss KL(p_t || softmax_b I_tb) over the blocks of S_t, p_t the weights that the main attention
// would give all keys, summed over heads and over the keys of a block, divided by their sum. Its
// inputs are constants for that loss.
#pragma once

#include "tessera/nn/select/index_heads.h"

namespace tessera::nn {

struct PooledIndexerConfig final : BlockIndexConfig {
  PooledIndexerConfig() : BlockIndexConfig(16, 128) {}
  static constexpr auto fields() {
    return std::tuple_cat(
        head_fields("heads of the indexer"),
        block_fields("complete blocks that a query attends to"), rotation_fields(),
        std::tuple{norm_field("norm of index queries and of the means; null = none")},
        IndexLossConfig::fields());
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"n_heads", 4}, {"head_dim", 32}, {"size", 16}, {"top_k", 16}};
  }
  static spec::Info info() {
    return {.summary =
                "Pooled indexer: the blocks of keys whose mean index key scores best (Qwen sparse "
                "attention).",
            .paper = "Qwen Team: Qwen4-Exp",
            .year = 2026,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  void check(const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  int64_t keys_met(int64_t context) const override { return std::min(context, dense_length()); }
  /// Length of a document up to which every query has all keys before it.
  int64_t dense_length() const { return (top_k + 1) * size - 1; }
};

}  // namespace tessera::nn
