#include "tessera/nn/residual/hyper_connections.h"

#include "tessera/nn/residual/damped.h"
#include "tessera/nn/residual/streams.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class HyperConnections final : public Residual {
 public:
  HyperConnections(const HyperConnectionsConfig& config, const Builder& builder)
      : config_(config), alpha_(builder.weight("alpha")), beta_(builder.weight("beta")) {
    if (!config.dynamic) return;
    spec::Scope own = builder.scope();
    own.width = own.d_model;
    norm_ = build_norm(config.norm, builder.under("norm", own));
    alpha_of_ = Linear(builder, "alpha_of");
    beta_of_ = Linear(builder, "beta_of");
    alpha_scale_ = builder.weight("alpha_scale");
    beta_scale_ = builder.weight("beta_scale");
  }

  Stream enter(const Tensor& x_ND, Context&) const override {
    return {every_stream(x_ND, config_.streams)};
  }
  Tensor leave(const Stream& stream, Context&) const override {
    const Tensor& h_NSD = stream.front();
    return weighed_sum(at::ones({1, 1}, h_NSD.options()).expand({h_NSD.size(0), config_.streams}),
                       h_NSD);
  }

  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& h_NSD = stream.front();
    const Branch& f = branches[0];
    const int64_t n = h_NSD.size(0), s = config_.streams;
    const auto as_h = [&](const ops::Weight& w) { return w.tensor().to(h_NSD.options()); };
    Tensor alpha_NSC = ops::expanded(as_h(*alpha_), {n, s, s + 1}),
           beta_NS = ops::expanded(as_h(*beta_), {n, s});
    if (config_.dynamic) {
      const Tensor m_NSD = norm_->forward(h_NSD, context.products);
      alpha_NSC = alpha_NSC + scaled(*alpha_scale_, alpha_of_(m_NSD, context));
      beta_NS = beta_NS + scaled(*beta_scale_, beta_of_(m_NSD, context).squeeze(-1));
    }
    const Tensor u_ND = weighed_sum(alpha_NSC.select(2, 0), h_NSD);
    const Tensor y_ND =
        damped(config_, f.run(f.norms[0]->forward(u_ND, context), context), f, context);
    std::vector<Tensor> next;
    for (int64_t t = 0; t < s; ++t)
      next.push_back(weighed_sum(alpha_NSC.select(2, 1 + t), h_NSD) +
                     beta_NS.select(1, t).unsqueeze(-1) * y_ND);
    return {at::stack(next, 1)};
  }

 private:
  /// scale tanh(y), in double: the gradient of the scale is a sum over all tokens, which nearly
  /// cancels.
  static Tensor scaled(const ops::Weight& scale, const Tensor& y) {
    const Tensor t = ops::activate(y, ops::Activation::tanh);
    return (ops::spread(scale.tensor().to(y.device(), at::kDouble), t) * t.to(at::kDouble))
        .to(y.scalar_type());
  }

  HyperConnectionsConfig config_;
  WeightPtr alpha_, beta_, alpha_scale_, beta_scale_;
  std::unique_ptr<Norm> norm_;
  Linear alpha_of_, beta_of_;
};

}  // namespace

std::unique_ptr<Residual> build(const HyperConnectionsConfig& config, const Builder& builder) {
  return std::make_unique<HyperConnections>(config, builder);
}

}  // namespace tessera::nn
