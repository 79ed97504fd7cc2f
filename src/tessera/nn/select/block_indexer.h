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

#include "tessera/nn/position/rope.h"
#include "tessera/nn/select/select_config.h"

namespace tessera::nn {

struct BlockIndexerConfig final : SelectConfig {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t size = 128;
  int64_t top_k = 16;
  int64_t local = 1;
  int64_t rotary_dim = 0;
  RopeLayout layout = RopeLayout::half;
  spec::Part<spec::Slot::norm> norm;
  double kl_loss = 1;

  static constexpr auto fields() {
    using C = BlockIndexerConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads,
              "index heads, divides the mixer's heads: each share of these reads what one has "
              "chosen",
              {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one of them, and of its keys",
              {.min = 1, .required = true}),
        field("size", &C::size, "keys of a block", {.min = 1}),
        field("top_k", &C::top_k, "blocks that a query attends to", {.min = 1}),
        field("local", &C::local,
              "blocks that are always among them: that of the query and those before it",
              {.min = 0}),
        field("rotary_dim", &C::rotary_dim,
              "channels of each head that rotate, the first ones, by the angles of the mixer's "
              "rope; 0 = as many as rotate there",
              {.min = 0}),
        field("layout", &C::layout, "which channels form a pair"),
        field("norm", &C::norm, "norm of index queries and keys; null = none",
              {.part = "rms_norm"}),
        field("kl_loss", &C::kl_loss,
              "factor on the KL divergence of its scores from the attention's weights, from which "
              "it learns; 0 = it does not learn",
              {.min = 0})};
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
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = head_dim;
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (rotary_dim == 0) rotary_dim = scope.rotated;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  int64_t keys_met(int64_t context) const override { return std::min(context, top_k * size); }
};

}  // namespace tessera::nn
