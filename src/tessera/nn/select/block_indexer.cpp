#include "tessera/nn/select/block_indexer.h"

#include <cmath>

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/select/index_keys.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {
namespace {

class BlockIndexer final : public Select {
 public:
  BlockIndexer(const BlockIndexerConfig& config, const Builder& builder)
      : config_(config), name_(builder.prefix()), q_(builder, "q"), k_(builder, "k") {
    if (!config.norm) return;
    const spec::Scope of_heads = config.child_scope(builder.scope(), "norm");
    q_norm_ = build_norm(config.norm, builder.under("q_norm", of_heads));
    k_norm_ = build_norm(config.norm, builder.under("k_norm", of_heads));
  }

  int64_t block() const override { return config_.size; }

  Tensor choose(const SelectInput& input,
                Context& context,
                const StateRows* rows,
                size_t slot) const override {
    const Batch& batch = *context.batch;
    check_indexed_call(name_, context, rows, config_.kl_loss);
    const at::NoGradGuard no_gradients;
    const std::vector<std::vector<Tensor>> held =
        held_index_keys(keys(input, context), batch, rows, slot);
    if (batch.longest() <= config_.top_k * config_.size) return {};
    const Tensor q_NGD = queries(input, context);
    const BySegment part(batch);
    return over_segments(batch, [&](size_t i, const Segment& s) {
      return ops::top_blocks({part(q_NGD, i), held[i], s.start}, config_.top_k, config_.size,
                             config_.local);
    });
  }

  void learn(const SelectInput& input,
             const Tensor& block_NGK,
             const SelectedAttention& attention,
             Context& context) const override {
    if (!context.add_loss || config_.kl_loss == 0) return;
    const SelectInput constant{input.x_ND.detach(), input.latent_NQ.detach(), input.position};
    const Tensor q_NGD = queries(constant, context), k_ND = keys(constant, context);
    const BySegment part(*context.batch);
    const Tensor loss_N = over_segments(*context.batch, [&](size_t i, const Segment&) {
      return ops::block_index_loss(
          part(q_NGD, i), part(k_ND, i), 1 / std::sqrt(static_cast<double>(config_.head_dim)),
          block_NGK.defined() ? part(block_NGK, i) : block_NGK, config_.size,
          {part(attention.q_NHK, i), part(attention.k_NGK, i), attention.how});
    });
    context.add_loss("indexer_kl", config_.kl_loss * ops::ordered_sum(loss_N));
  }

 private:
  Tensor queries(const SelectInput& input, Context& context) const {
    const Tensor q_NE = q_(input.latent_NQ, context);
    return placed(q_NE.reshape({q_NE.size(0), config_.n_heads, config_.head_dim}), q_norm_.get(),
                  Side::query, *input.position, context);
  }
  Tensor keys(const SelectInput& input, Context& context) const {
    return placed(k_(input.x_ND, context).unsqueeze(1), k_norm_.get(), Side::key, *input.position,
                  context)
        .squeeze(1);
  }
  Tensor placed(const Tensor& x_NHD,
                const Norm* norm,
                Side side,
                const Position& position,
                Context& context) const {
    const Tensor normed = norm != nullptr ? norm->forward(x_NHD, context.products) : x_NHD;
    if (config_.rotary_dim == 0) return normed;
    const Rotation by = position.rotation(side, config_.rotary_dim, ops::wide(normed), context);
    return ops::rope(normed, *by.table, config_.layout == RopeLayout::interleaved);
  }

  BlockIndexerConfig config_;
  std::string name_;
  Linear q_, k_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
};

}  // namespace

std::unique_ptr<Select> build(const BlockIndexerConfig& config, const Builder& builder) {
  return std::make_unique<BlockIndexer>(config, builder);
}

}  // namespace tessera::nn
