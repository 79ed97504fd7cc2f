// What the configs of indexers have in common (indexer.h, block_indexer.h, pooled_indexer.h): heads
// with one key for all of them, rotated by the angles of the mixer's rope, that score the keys of
// every query, and the loss from which they learn. index_keys.h has what they share in a call.
#pragma once

#include "tessera/nn/position/rope.h"
#include "tessera/nn/select/index_loss.h"
#include "tessera/nn/select/select_config.h"

namespace tessera::nn {

struct IndexHeadsConfig : SelectConfig, IndexLossConfig {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  RopeLayout layout = RopeLayout::half;

  /// Of indexers that are never without heads; the documentation of n_heads.
  static constexpr auto head_fields(const char* n_heads_doc) {
    using C = IndexHeadsConfig;
    using spec::field;
    return std::tuple{field("n_heads", &C::n_heads, n_heads_doc, {.min = 1, .required = true}),
                      field("head_dim", &C::head_dim, "width of one of them, and of its keys",
                            {.min = 1, .required = true})};
  }
  static constexpr auto rotary_dim_field(const char* doc) {
    return spec::field("rotary_dim", &IndexHeadsConfig::rotary_dim, doc, {.min = 0});
  }
  static constexpr auto layout_field() {
    return spec::field("layout", &IndexHeadsConfig::layout, "which channels form a pair");
  }
  void complete(const spec::Scope& scope) override {
    if (rotary_dim == 0) rotary_dim = scope.rotated;
  }
  /// Declares "q", queries by heads, and "k", their key.
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  /// "index_k", a key of every token.
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  /// Of the scores of every key.
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

 protected:
  /// Throws Error(spec) where other channels would rotate than in the mixer, or more than there
  /// are.
  void check_rotation(const spec::Scope& scope) const;
};

/// Indexers that choose blocks of keys, and whose queries and keys have a norm.
struct BlockIndexConfig : IndexHeadsConfig {
  int64_t size = 0;
  int64_t top_k = 0;
  spec::Part<spec::Slot::norm> norm;

  BlockIndexConfig(int64_t keys_of_a_block, int64_t blocks)
      : size(keys_of_a_block), top_k(blocks) {}
  static constexpr auto block_fields(const char* top_k_doc) {
    using C = BlockIndexConfig;
    return std::tuple{spec::field("size", &C::size, "keys of a block", {.min = 1}),
                      spec::field("top_k", &C::top_k, top_k_doc, {.min = 1})};
  }
  static constexpr auto rotation_fields() {
    return std::tuple{
        rotary_dim_field("channels of each head that rotate, the first ones, by the angles of the "
                         "mixer's rope; 0 = as many as rotate there"),
        layout_field()};
  }
  static constexpr auto norm_field(const char* doc) {
    return spec::field("norm", &BlockIndexConfig::norm, doc, {.part = "rms_norm"});
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = head_dim;
    return scope;
  }
  /// Those of the heads, "q_norm" and "k_norm".
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
