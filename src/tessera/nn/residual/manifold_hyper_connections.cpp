#include "tessera/nn/residual/manifold_hyper_connections.h"

#include <optional>

#include "tessera/nn/residual/damped.h"
#include "tessera/nn/residual/streams.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/sinkhorn.h"

namespace tessera::nn {
namespace {

/// F, b and s: a product of all streams of a token, each channel scaled and moved.
struct Mixing {
  Linear fn;
  WeightPtr base, scale;
  explicit Mixing(const Builder& builder)
      : fn(builder, "fn"), base(builder.weight("base")), scale(builder.weight("scale")) {}
};

class ManifoldHyperConnections final : public Residual {
 public:
  ManifoldHyperConnections(const ManifoldHyperConnectionsConfig& config, const Builder& builder)
      : config_(config), mixing_(builder) {
    if (builder.optional("leave.fn.weight")) leaving_.emplace(builder.under("leave"));
  }

  Stream enter(const Tensor& x_ND, Context&) const override {
    return {every_stream(x_ND, config_.streams)};
  }

  Tensor leave(const Stream& stream, Context& context) const override {
    const Tensor& h_NSD = stream.front();
    const Tensor pre_NS = ops::activate(mixed(*leaving_, h_NSD, {config_.streams}, context),
                                        ops::Activation::sigmoid) +
                          config_.eps;
    return weighed_sum(pre_NS.to(h_NSD.scalar_type()), h_NSD);
  }

  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& h_NSD = stream.front();
    const Branch& f = branches[0];
    const int64_t n = h_NSD.size(0), s = config_.streams;
    const auto type = h_NSD.scalar_type();
    const Tensor z =
        mixed(mixing_, h_NSD, config_.mix ? std::vector{s, s, s * s} : std::vector{s, s}, context);
    const Tensor gates = ops::activate(z, ops::Activation::sigmoid);
    const Tensor pre_NS = (gates.narrow(1, 0, s) + config_.eps).to(type);
    const Tensor of_branch_NS = config_.magnitude * gates.narrow(1, s, s);
    const Tensor post_NS = (config_.mix ? of_branch_NS : of_branch_NS + config_.eps).to(type);
    Tensor mix_NSS;
    if (config_.mix)
      mix_NSS = ops::doubly_stochastic(z.narrow(1, 2 * s, s * s).reshape({n, s, s}),
                                       config_.iterations, config_.eps)
                    .to(type);
    const Tensor u_ND = weighed_sum(pre_NS, h_NSD);
    const Tensor y_ND =
        damped(config_, f.run(f.norms[0]->forward(u_ND, context), context), f, context);
    std::vector<Tensor> next;
    for (int64_t t = 0; t < s; ++t)
      next.push_back(post_NS.select(1, t).unsqueeze(-1) * y_ND +
                     (config_.mix ? weighed_sum(mix_NSS.select(2, t), h_NSD) : h_NSD.select(1, t)));
    return {at::stack(next, 1)};
  }

 private:
  /// s_i (F x)_i + b of every channel, in float32 or double; part i of `widths` has scale i.
  Tensor mixed(const Mixing& mixing,
               const Tensor& h_NSD,
               const std::vector<int64_t>& widths,
               const Context& context) const {
    const auto type = h_NSD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor x = ops::rms_norm(h_NSD.flatten(1).to(type), Tensor(), 0, config_.norm_eps);
    // in double: gradients of a scale are sums over all tokens, which nearly cancel
    const Tensor scale = mixing.scale->tensor().to(h_NSD.device(), at::kDouble);
    std::vector<Tensor> scales;
    for (size_t i = 0; i < widths.size(); ++i)
      scales.push_back(scale.narrow(0, static_cast<int64_t>(i), 1).expand({widths[i]}));
    const Tensor y = mixing.fn(x, context).to(at::kDouble);
    return (y * ops::spread(at::cat(scales), y) +
            ops::spread(mixing.base->tensor().to(h_NSD.device(), at::kDouble), y))
        .to(type);
  }

  ManifoldHyperConnectionsConfig config_;
  Mixing mixing_;
  std::optional<Mixing> leaving_;
};

}  // namespace

std::unique_ptr<Residual> build(const ManifoldHyperConnectionsConfig& config,
                                const Builder& builder) {
  return std::make_unique<ManifoldHyperConnections>(config, builder);
}

}  // namespace tessera::nn
