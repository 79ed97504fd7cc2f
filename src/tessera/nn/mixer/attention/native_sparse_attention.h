// Native sparse attention (NSA): three branches with softmaxes of their own, mixed by gates of
// every head.
//   compressed: keys of blocks of `block` tokens, one every `stride`, made by a pool
//   selected:   raw tokens of the `n_selected` blocks of `select_block` tokens that matter most, by
//               the compressed branch's weights, summed over the query heads of a kv head
//   window:     the last `window` tokens, with keys and values of their own, or those of the others
//   o = sum over branches of sigmoid(W_g x) o_branch
// Yuan et al. 2025, arXiv:2502.11089.
//
// A compressed block is visible once it is complete. A selection block weighs what its compressed
// blocks weigh, each counted by the strides that both share. The first `n_initial` blocks and the
// last `n_local`, the query's own included, are always selected; ties go to the earlier block.
// Keys are compressed after their rotation, as the open implementation does. Blocks are counted
// from the document's beginning. What a position adds to the scores it adds in all branches; a
// compressed block has the position of its last token. The scores that select blocks have it, too.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class BlockPool {
  mean,
  mlp,  // of the block's channels, with a learned vector for each place in it
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::BlockPool> {
  static constexpr std::array names{std::pair{nn::BlockPool::mean, "mean"},
                                    std::pair{nn::BlockPool::mlp, "mlp"}};
};

namespace tessera::nn {

struct NativeSparseAttentionConfig final : spec::Config, HeadsConfig {
  int64_t block = 32;
  int64_t stride = 16;
  BlockPool pool = BlockPool::mlp;
  int64_t select_block = 64;
  int64_t n_selected = 16;
  int64_t n_initial = 1;
  int64_t n_local = 2;
  int64_t window = 512;
  bool shared_kv = false;
  AttentionBias bias;
  bool gate_bias = true;
  spec::Part<spec::Slot::position> position;

  static constexpr auto fields() {
    using C = NativeSparseAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields("width of one head; 0 = d_model / n_heads",
                            "key/value heads, divides n_heads; 0 = n_heads"),
        std::tuple{
            field("block", &C::block, "tokens of a compressed block, a multiple of stride",
                  {.min = 1}),
            field("stride", &C::stride, "tokens from one compressed block to the next", {.min = 1}),
            field("pool", &C::pool, "how a block becomes one key and one value"),
            field("select_block", &C::select_block,
                  "tokens of a selected block, a multiple of stride", {.min = 1}),
            field("n_selected", &C::n_selected, "blocks that a query selects", {.min = 1}),
            field("n_initial", &C::n_initial, "of them the first ones of the document", {.min = 0}),
            field("n_local", &C::n_local, "of them the last ones, the query's own included",
                  {.min = 1}),
            field("window", &C::window, "tokens of the window branch", {.min = 1}),
            field("shared_kv", &C::shared_kv,
                  "whether the window branch reads the keys and values of the others"),
            field("bias", &C::bias, "which projections have a bias"),
            field("gate_bias", &C::gate_bias, "whether the projection of the gates has a bias"),
            field("position", &C::position, "how order enters", {.part = "none"})});
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"n_selected", 8}, {"window", 128}};
  }
  static spec::Info info() {
    return {
        .summary = "Compressed, selected and recent tokens, each with a softmax, mixed by gates.",
        .paper = "Yuan et al.: Native Sparse Attention, arXiv:2502.11089",
        .year = 2025,
        .forms = {.recurrent = true},
        .time = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope.d_model);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true, .score_bias = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override { complete_heads(scope.d_model, scope); }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// Complete compressed blocks that the query at `position` sees.
  int64_t visible_blocks(int64_t position) const {
    return position + 1 < block ? 0 : (position + 1 - block) / stride + 1;
  }
  /// The selection blocks of the query at `position`, ascending, given the weights of its visible
  /// compressed blocks.
  std::vector<int64_t> selected(int64_t position, const std::vector<double>& weights) const;
};

}  // namespace tessera::nn
