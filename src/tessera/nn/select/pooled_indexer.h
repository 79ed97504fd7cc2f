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

#include "tessera/nn/position/rope.h"
#include "tessera/nn/select/select_config.h"

namespace tessera::nn {

struct PooledIndexerConfig final : SelectConfig {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t size = 16;
  int64_t top_k = 128;
  int64_t rotary_dim = 0;
  RopeLayout layout = RopeLayout::half;
  spec::Part<spec::Slot::norm> norm;
  double kl_loss = 1;

  static constexpr auto fields() {
    using C = PooledIndexerConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "heads of the indexer", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one of them, and of its keys",
              {.min = 1, .required = true}),
        field("size", &C::size, "keys of a block", {.min = 1}),
        field("top_k", &C::top_k, "complete blocks that a query attends to", {.min = 1}),
        field("rotary_dim", &C::rotary_dim,
              "channels of each head that rotate, the first ones, by the angles of the mixer's "
              "rope; 0 = as many as rotate there",
              {.min = 0}),
        field("layout", &C::layout, "which channels form a pair"),
        field("norm", &C::norm, "norm of index queries and of the means; null = none",
              {.part = "rms_norm"}),
        field("kl_loss", &C::kl_loss,
              "factor on the KL divergence of its scores from the attention's weights, from which "
              "it learns; 0 = it does not learn",
              {.min = 0})};
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
  int64_t keys_met(int64_t context) const override { return std::min(context, dense_length()); }
  /// Length of a document up to which every query has all keys before it.
  int64_t dense_length() const { return (top_k + 1) * size - 1; }
};

}  // namespace tessera::nn
