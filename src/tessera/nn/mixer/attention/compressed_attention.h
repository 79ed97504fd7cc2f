// Compressed attention (DeepSeek-V4): every query reads the last `window` tokens and, of the whole
// document, entries that a learned pooling made of `block` tokens each. One head of keys serves all
// query heads, and keys are the values.
//   c = N(W_qa x);  q = N_q(W_qb c) per head;  k = N(W_kv x);  q and k rotated
//   s_ij = head_dim^-1/2 q_i . k_j over tokens i - window < j <= i and complete blocks
//   o_i = sum_j p_ij k_j, its rotary channels turned back by the angles of i;  y = W_o o
// Values carry their rotation; turned back, a value counts by its distance to the query.
//
// Pooling, of block b with tokens j:  k_b = N(sum_j softmax_j(Z_j + B_j) * C_j), channel by
// channel, C = W_c x, Z = W_z x, B a learned vector for each place in a block; k_b is rotated by
// the angles of its first token. With `overlap` C and Z have two series, and the sum runs over the
// first series of the block before and the second of this one (CSA); without, over the block alone
// (HCA).
//
// With `index.n_heads` an indexer chooses the `index.top_k` entries that a query reads: pooled keys
// of its own, and scores sum_h w_h max(0, index.head_dim^-1/2 qI_h . kI_b) as in select/indexer.h,
// from whose kind of loss it learns. Without, a query reads all of them.
//
// DeepSeek-AI 2026, DeepSeek-V4 technical report, sec. 2.3. With o_groups the output is projected
// in groups of heads first: W_o = W_ob blockdiag(W_oa).
//
// Blocks are counted from the document's beginning. A state keeps the last `window` keys, an entry
// (and an indexer key) of every block, and the projections C and Z of one or two blocks.
#pragma once

#include "tessera/nn/position/position_config.h"
#include "tessera/nn/select/index_loss.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

/// The indexer of compressed entries.
struct EntryIndex : IndexLossConfig {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t top_k = 512;
  static constexpr auto fields() {
    using C = EntryIndex;
    return std::tuple_cat(
        std::tuple{spec::field("n_heads", &C::n_heads,
                               "heads of the indexer; 0 = none: all entries are read", {.min = 0}),
                   spec::field("head_dim", &C::head_dim, "width of one of them, and of its keys",
                               {.min = 0}),
                   spec::field("top_k", &C::top_k, "entries that a query reads", {.min = 1})},
        IndexLossConfig::fields());
  }
};

struct CompressedAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  spec::Part<spec::Slot::norm> norm;
  spec::Part<spec::Slot::norm> query_norm;
  int64_t window = 128;
  int64_t block = 4;
  bool overlap = false;
  EntryIndex index;
  bool sinks = false;
  int64_t o_groups = 1;
  int64_t o_lora_rank = 0;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = CompressedAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "query heads", {.min = 1, .required = true}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("rope_head_dim", &C::rope_head_dim,
              "channels, the last of a head, that `position` rotates; 0 = all", {.min = 0}),
        field("q_lora_rank", &C::q_lora_rank, "width of the query latent; 0 = projected directly",
              {.min = 0}),
        field("norm", &C::norm, "norm of the query latent, the keys and the entries; null = none",
              {.part = "rms_norm"}),
        field("query_norm", &C::query_norm, "norm of every query head; null = none"),
        field("window", &C::window, "tokens that a query reads, its own included", {.min = 1}),
        field("block", &C::block, "tokens of an entry; 0 = no entries: a window alone", {.min = 0}),
        field("overlap", &C::overlap,
              "whether an entry also pools a second series of the block before"),
        field("index", &C::index, "how the entries of a query are chosen"),
        field("sinks", &C::sinks, "a learned logit per head that takes weight and gives nothing"),
        field("o_groups", &C::o_groups, "groups of heads that are projected apart", {.min = 1}),
        field("o_lora_rank", &C::o_lora_rank,
              "width of a group's projection; 0 = the output is one product", {.min = 0}),
        field("position", &C::position, "how order enters; a rotation", {.part = "none"})};
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"block", 8}, {"window", 128}, {"position", "rope"}};
  }
  static spec::Info info() {
    return {.summary =
                "A window of tokens and entries that a learned pooling made of blocks of tokens "
                "(CSA, HCA).",
            .paper = "DeepSeek-AI: DeepSeek-V4 technical report",
            .year = 2026,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope);
    scope.n_heads = n_heads;
    if (name == "position") {
      scope.rotated = rope_head_dim > 0 ? rope_head_dim : scope.width;
      scope.places = {.rotation = true};
    }
    return scope;
  }
  /// Of a norm of `width` channels.
  static spec::Scope norm_scope(spec::Scope scope, int64_t width) {
    scope.width = width;
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// Series of the pooling's projections.
  int64_t series() const { return overlap ? 2 : 1; }
  bool indexed() const { return index.n_heads > 0; }
  /// What queries are projected from.
  int64_t query_width(const spec::Scope& scope) const {
    return q_lora_rank > 0 ? q_lora_rank : scope.d_model;
  }
};

}  // namespace tessera::nn
