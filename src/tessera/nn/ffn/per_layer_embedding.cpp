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
        context_(builder, "context"),
        out_(builder, "out") {
    const Builder all = builder.shared(config.share);
    token_ = all.weight("token.weight");
    norm_ = build_norm(config.norm, all.under("norm", config.child_scope(scope_, "norm")));
  }

  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const int64_t d = scope_.d_model, p = config_.width;
    const Tensor stream_ND = x_ND.narrow(1, 0, d), embedding_ND = x_ND.narrow(1, x_ND.size(1) - d, d);
    const Tensor token_NP = rows_of_all_layers(context).narrow(1, scope_.layer * p, p);
    const Tensor context_NP =
        norm_->forward(context_(embedding_ND, context) * (1 / root(d)), context.products);
    const Tensor own_NP =
        (context_NP + token_NP.to(context_NP.scalar_type()) * root(p)) * std::sqrt(0.5);
    return out_(ops::gated(gate_(stream_ND, context), own_NP, kernel_of(config_.act)), context);
  }

 private:
  static double root(int64_t n) { return std::sqrt(static_cast<double>(n)); }

  /// What the tables hold of the call's tokens, [N, L P], read by the first layer of the stack.
  const Tensor& rows_of_all_layers(Context& context) const {
    const std::string stack = name_.substr(0, std::min(name_.find("layers."), name_.size()));
    return context.values.once("rows of " + config_.share + " in " + stack, [&] {
      const Tensor& ids_N = context.batch->ids_N;
      require(ids_N.defined(), name_, "a call without token ids");
      return ops::rows(*token_, ids_N.masked_fill(ids_N >= config_.vocab, 0), context.products);
    });
  }

  PerLayerEmbeddingConfig config_;
  std::string name_;
  spec::Scope scope_;
  Linear gate_, context_, out_;
  WeightPtr token_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace

std::unique_ptr<Ffn> build(const PerLayerEmbeddingConfig& config, const Builder& builder) {
  return std::make_unique<PerLayerEmbedding>(config, builder);
}

}  // namespace tessera::nn
