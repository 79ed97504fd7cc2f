#include "tessera/nn/select/indexer.h"

#include <cmath>

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/select/index_keys.h"
#include "tessera/nn/select/indexer_step.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {
namespace {

class Indexer final : public SteppedSelect {
 public:
  Indexer(const IndexerConfig& config, const Builder& builder)
      : config_(config), name_(builder.prefix()) {
    if (!config.share.empty()) return;
    q_ = Linear(builder, "q");
    k_ = Linear(builder, "k");
    weights_ = Linear(builder, "weights");
    spec::Scope of_keys = builder.scope();
    of_keys.width = config.head_dim;
    k_norm_ = build_norm(config.key_norm(of_keys), builder.under("k_norm", of_keys));
  }

  Tensor choose(const SelectInput& input,
                Context& context,
                const StateRows* rows,
                size_t slot) const override {
    const Batch& batch = *context.batch;
    check_indexed_call(name_, context, rows, config_.share.empty() ? config_.kl_loss : 0);
    if (!config_.share.empty()) return shared(context);
    const at::NoGradGuard no_gradients;
    const std::vector<std::vector<Tensor>> held =
        held_index_keys(keys(input, context), batch, rows, slot);
    const BySegment part(batch);
    Tensor key_NK;
    if (batch.longest() > config_.top_k) {
      const Tensor q_NHD = queries(input, context), w_NH = weights(input, context);
      key_NK = over_segments(batch, [&](size_t i, const Segment& s) {
        return ops::top_keys({part(q_NHD, i), part(w_NH, i), held[i], scale(), s.start},
                             config_.top_k);
      });
    }
    if (!config_.name.empty())
      context.values.put(selected_keys_name(config_.name),
                         key_NK.defined() ? key_NK : at::empty({0, config_.top_k}, at::kInt));
    return key_NK;
  }

  std::shared_ptr<const SelectStep> step(StepWeights& weights,
                                         const Position& position) const override {
    return indexer_step({config_, q_, k_, weights_, k_norm_.get(), position}, weights);
  }

  void learn(const SelectInput& input,
             const Tensor& key_NK,
             const SelectedAttention& attention,
             Context& context) const override {
    if (!context.add_loss || config_.kl_loss == 0 || !config_.share.empty()) return;
    const SelectInput constant{input.x_ND.detach(), input.latent_NQ.detach(), input.position};
    const Tensor q_NHD = queries(constant, context), k_ND = keys(constant, context),
                 w_NH = weights(constant, context);
    const BySegment part(*context.batch);
    const Tensor loss_N = over_segments(*context.batch, [&](size_t i, const Segment&) {
      return ops::index_loss(part(q_NHD, i), part(k_ND, i), part(w_NH, i), scale(),
                             key_NK.defined() ? part(key_NK, i) : key_NK,
                             {part(attention.q_NHK, i), part(attention.k_NGK, i), attention.how});
    });
    context.add_loss("indexer_kl", config_.kl_loss * ops::ordered_sum(loss_N));
  }

 private:
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.head_dim)); }

  /// What the earlier layer chose.
  Tensor shared(const Context& context) const {
    const Tensor& key_NK = context.values.at(selected_keys_name(config_.share));
    return key_NK.size(0) == 0 ? Tensor() : key_NK;
  }

  Tensor queries(const SelectInput& input, Context& context) const {
    const Tensor q_NE = q_(input.latent_NQ, context);
    return rotated(q_NE.reshape({q_NE.size(0), config_.n_heads, config_.head_dim}), Side::query,
                   *input.position, context);
  }
  Tensor keys(const SelectInput& input, Context& context) const {
    return rotated(k_norm_->forward(k_(input.x_ND, context), context.products).unsqueeze(1),
                   Side::key, *input.position, context)
        .squeeze(1);
  }
  Tensor weights(const SelectInput& input, const Context& context) const {
    return weights_(input.x_ND, context) / std::sqrt(static_cast<double>(config_.n_heads));
  }
  Tensor rotated(const Tensor& x_NHD, Side side, const Position& position, Context& context) const {
    if (config_.rotary_dim == 0) return x_NHD;
    const Rotation by = position.rotation(side, config_.rotary_dim, ops::wide(x_NHD), context);
    const bool pairs = config_.layout == RopeLayout::interleaved;
    if (config_.rotated == RotatedChannels::first) return ops::rope(x_NHD, *by.table, pairs);
    const int64_t still = config_.head_dim - config_.rotary_dim;
    return at::cat({x_NHD.narrow(2, 0, still),
                    ops::rope(x_NHD.narrow(2, still, config_.rotary_dim), *by.table, pairs)},
                   2);
  }

  IndexerConfig config_;
  std::string name_;
  Linear q_, k_, weights_;
  std::unique_ptr<Norm> k_norm_;
};

}  // namespace

std::unique_ptr<Select> build(const IndexerConfig& config, const Builder& builder) {
  return std::make_unique<Indexer>(config, builder);
}

}  // namespace tessera::nn
