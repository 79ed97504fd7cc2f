// Block indexer: block-sparse attention whose blocks of keys are chosen by content (MiniMax sparse
// attention, MSA). Index heads, one key for all of them, score the keys of every query; the best
// key of a block speaks for it, and each share of the main attention's heads reads the blocks that
// its index head has chosen.
//   qI = N(W_q c) per head;  kI = N(W_k x);  the first rotary_dim channels of both rotated
//   B_gtb = max of qI_tg . kI_s over the keys s <= t of block b, of `size` keys
//   S_gt = the keys s <= t of the min(top_k, floor(t / size) + 1) blocks of greatest B_gtb, the own
//          one and the local - 1 before it first of all
// Blocks begin with the document. Of equal ones the earlier wins. c: what the mixer's queries are
// projected from. A state keeps kI of every token.
// MiniMax 2026, arXiv:2606.13392. Golden: successors of attention 1.
//
// No gradient passes the choice: in training the index heads learn from a loss of their own alone,
// kl_loss sum_g KL(p_gt || softmax_s head_dim^-1/2 qI_tg . kI_s) over S_gt, p_gt the weights that
// the main attention would give all keys, summed over the heads of share g, there and divided by
// their sum. Its inputs are constants for that loss.
#pragma once

#include "tessera/nn/select/index_heads.h"

namespace tessera::nn {

struct BlockIndexerConfig final : BlockIndexConfig {
  int64_t local = 1;

  BlockIndexerConfig() : BlockIndexConfig(128, 16) {}
  static constexpr auto fields() {
    return std::tuple_cat(
        head_fields(
            "index heads, divides the mixer's heads: each share of these reads what one has "
            "chosen"),
        block_fields("blocks that a query attends to"),
        std::tuple{
            spec::field("local", &BlockIndexerConfig::local,
                        "blocks that are always among them: that of the query and those before it",
                        {.min = 0})},
        rotation_fields(), std::tuple{norm_field("norm of index queries and keys; null = none")},
        IndexLossConfig::fields());
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"n_heads", 1}, {"head_dim", 32}, {"size", 32}, {"top_k", 8}};
  }
  static spec::Info info() {
    return {.summary =
                "Block indexer: the blocks of keys of greatest index score, for each share of the "
                "heads (MiniMax sparse attention).",
            .paper = "MiniMax: MiniMax-M3, arXiv:2606.13392",
            .year = 2026,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  void check(const spec::Scope& scope) const override;
  int64_t keys_met(int64_t context) const override { return std::min(context, top_k * size); }
};

}  // namespace tessera::nn
