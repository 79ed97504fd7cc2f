#include "tessera/nn/residual/gated_hyper_connections.h"

#include <optional>

#include "tessera/nn/norm/stream_norm.h"
#include "tessera/nn/residual/damped.h"
#include "tessera/nn/residual/streams.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

/// N, D_m and U: the gated mean of the streams.
struct GatedReading {
  StreamNorm norm;
  Linear down, up;
  GatedReading(const GatedHyperConnectionsConfig& config, const Builder& builder)
      : norm(builder, "norm", config.norm_weight, config.norm_eps),
        down(builder, "down"),
        up(builder, "up") {}

  /// u_ND of the normed streams, added in the order of the streams for every token.
  Tensor operator()(const Tensor& x_NSD, const Context& context) const {
    const auto s = static_cast<double>(x_NSD.size(1));
    const Tensor low_NR = ops::activate(down(x_NSD.flatten(1), context) / s, ops::Activation::silu);
    const Tensor gate_NSD =
        ops::activate(up(low_NR, context), ops::Activation::sigmoid).reshape(x_NSD.sizes());
    const Tensor gated_NSD = gate_NSD * x_NSD;
    Tensor sum_ND = gated_NSD.select(1, 0);
    for (int64_t i = 1; i < x_NSD.size(1); ++i) sum_ND = sum_ND + gated_NSD.select(1, i);
    return sum_ND / s;
  }
};

class GatedHyperConnections final : public Residual {
 public:
  GatedHyperConnections(const GatedHyperConnectionsConfig& config, const Builder& builder)
      : config_(config) {
    if (config.reads == StreamsRead::gated) {
      reading_.emplace(config, builder);
      inject_ = Linear(builder, "inject");
    }
    if (builder.optional("leave.down.weight")) leaving_.emplace(config, builder.under("leave"));
  }

  Stream enter(const Tensor& x_ND, Context&) const override {
    return {every_stream(x_ND, config_.streams)};
  }

  Tensor leave(const Stream& stream, Context& context) const override {
    return (*leaving_)(leaving_->norm(stream.front()), context);
  }

  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& h_NSD = stream.front();
    const Branch& f = branches[0];
    if (!reading_) return {with_all(h_NSD, f, context)};
    const Tensor x_NSD = reading_->norm(h_NSD);
    const Tensor weight_NS =
        config_.magnitude *
        ops::activate(inject_(x_NSD.flatten(1), context) / static_cast<double>(config_.streams),
                      ops::Activation::sigmoid);
    const Tensor y_ND = damped(config_, f.run((*reading_)(x_NSD, context), context), f, context);
    std::vector<Tensor> next;
    for (int64_t s = 0; s < config_.streams; ++s)
      next.push_back(h_NSD.select(1, s) + weight_NS.select(1, s).unsqueeze(-1) * y_ND);
    return {at::stack(next, 1)};
  }

 private:
  /// The streams, with what a branch makes of all of them.
  Tensor with_all(const Tensor& h_NSD, const Branch& f, Context& context) const {
    const Tensor y = damped(config_, f.run(h_NSD.flatten(1), context), f, context);
    return h_NSD + (y.size(1) == h_NSD.size(2) ? every_stream(y, config_.streams)
                                               : y.reshape(h_NSD.sizes()));
  }

  GatedHyperConnectionsConfig config_;
  std::optional<GatedReading> reading_, leaving_;
  Linear inject_;
};

}  // namespace

std::unique_ptr<Residual> build(const GatedHyperConnectionsConfig& config, const Builder& builder) {
  return std::make_unique<GatedHyperConnections>(config, builder);
}

}  // namespace tessera::nn
