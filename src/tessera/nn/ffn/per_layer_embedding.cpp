#include "tessera/nn/ffn/per_layer_embedding.h"

#include <cmath>

#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class PerLayerEmbedding final : public Ffn {
 public:
  PerLayerEmbedding(const PerLayerEmbeddingConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        scope_(builder.scope()),
        gate_(builder, "gate"),
        out_(builder, "out") {
    const Builder all = builder.shared(PerLayerEmbeddingConfig::kShared);
    token_ = all.weight("token.weight");
    project_ = Linear(all, "project");
    norm_ = build_norm(config.norm, all.under("norm", config.child_scope(scope_, "norm")));
  }

  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const int64_t d = scope_.d_model;
    const Tensor stream_ND = x_ND.narrow(1, 0, d), embedding_ND = x_ND.narrow(1, x_ND.size(1) - d, d);
    // of the stack that this layer belongs to
    const std::string key =
        "per-layer embeddings of " + name_.substr(0, std::min(name_.find("layers."), name_.size()));
    const Tensor& all_NLP =
        context.values.once(key, [&] { return of_all_layers(embedding_ND, *context.batch); });
    return out_(ops::gated(gate_(stream_ND), all_NLP.select(1, scope_.layer), kernel_of(config_.act)));
  }

 private:
  /// p_l of all layers: [N, L, P].
  Tensor of_all_layers(const Tensor& embedding_ND, const Batch& batch) const {
    const Tensor& ids_N = batch.ids_N;
    require(ids_N.defined() && ids_N.size(0) == embedding_ND.size(0), name_,
            "{} token ids of a call of {} tokens", ids_N.defined() ? ids_N.size(0) : 0,
            embedding_ND.size(0));
    const auto apart = [&](const Tensor& y) {
      return y.reshape({y.size(0), scope_.n_layers, config_.width});
    };
    const double d = static_cast<double>(scope_.d_model), p = static_cast<double>(config_.width);
    const Tensor context_NLP = norm_->forward(apart(project_(embedding_ND) * (1 / std::sqrt(d))));
    const Tensor own_N = ids_N.masked_fill(ids_N >= config_.vocab, 0);
    const Tensor token_NLP = apart(ops::rows(*token_, own_N) * std::sqrt(p));
    return (context_NLP + token_NLP.to(context_NLP.scalar_type())) * std::sqrt(0.5);
  }

  PerLayerEmbeddingConfig config_;
  std::string name_;
  spec::Scope scope_;
  Linear gate_, out_, project_;
  WeightPtr token_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace

std::unique_ptr<Ffn> build(const PerLayerEmbeddingConfig& config, const Builder& builder) {
  return std::make_unique<PerLayerEmbedding>(config, builder);
}

}  // namespace tessera::nn
