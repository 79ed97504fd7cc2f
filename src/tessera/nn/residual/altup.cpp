#include "tessera/nn/residual/altup.h"

#include "tessera/nn/residual/damped.h"
#include "tessera/nn/residual/streams.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class AltUp final : public Residual {
 public:
  AltUp(const AltUpConfig& config, const Builder& builder)
      : config_(config), width_(builder.scope().d_model) {
    const auto norm = [&](const char* name) {
      return build_norm(config.norm,
                        builder.under(name, config.child_scope(builder.scope(), "norm")));
    };
    if (config.of == AltUpOf::layer) {
      router_norm_ = norm("router_norm");
      router_ = Linear(builder, "router");
      predict_ = Linear(builder, "predict");
      correct_ = Linear(builder, "correct");
      if (config.laurel_rank > 0) {
        laurel_in_ = Linear(builder, "laurel_in");
        laurel_out_ = Linear(builder, "laurel_out");
        laurel_norm_ = norm("laurel_norm");
      }
    }
    if (config.correct_scale) correct_scale_ = builder.weight("correct_scale");
    enter_ = maps(builder.under("enter"));
    leave_ = maps(builder.under("leave"));
  }

  Stream enter(const Tensor& x_ND, Context& context) const override {
    std::vector<Tensor> streams{x_ND};
    for (const Linear& map : enter_) streams.push_back(as_long_as(x_ND, map(x_ND, context)));
    return {at::stack(streams, 1)};
  }

  Tensor leave(const Stream& stream, Context& context) const override {
    const Tensor& h_NSD = stream.front();
    const Tensor first_ND = h_NSD.select(1, 0);
    Tensor sum = first_ND;
    for (size_t s = 0; s < leave_.size(); ++s)
      sum = sum +
            as_long_as(first_ND, leave_[s](h_NSD.select(1, static_cast<int64_t>(s) + 1), context));
    return sum / static_cast<double>(config_.streams);
  }

  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    return {config_.of == AltUpOf::layer ? layer(stream.front(), branches, context)
                                         : others(stream.front(), branches[0], context)};
  }

 private:
  Tensor layer(const Tensor& h_NSD, std::span<const Branch> branches, Context& context) const {
    const int64_t s = config_.streams;
    const Tensor of_N = modalities(h_NSD.select(1, config_.active), context);
    const Tensor coefs_NSS = product(predict_, of_N, context).reshape({-1, s, s});
    std::vector<Tensor> predicted;
    for (int64_t i = 0; i < s; ++i)
      predicted.push_back(h_NSD.select(1, i) + weighed_sum(coefs_NSS.select(1, i), h_NSD));
    const Tensor& active_ND = predicted[static_cast<size_t>(config_.active)];
    Tensor y_ND = active_ND;
    for (const Branch& f : branches) {
      const Tensor n_ND = f.norms[0]->forward(y_ND, context);
      Tensor sum = y_ND + damped(config_, f.norms[1]->forward(f.run(n_ND, context), context), f,
                                 context);
      if (laurel_norm_ && &f == &branches.front())
        sum = (sum + n_ND +
               laurel_norm_->forward(laurel_out_(laurel_in_(n_ND, context), context),
                                     context.products)) *
              std::sqrt(0.5);
      y_ND = sum;
    }
    const Tensor gain_NS = product(correct_, modalities(y_ND, context), context) + 1,
                 moved = y_ND - active_ND;
    for (int64_t i = 0; i < s; ++i) {
      Tensor& p_ND = predicted[static_cast<size_t>(i)];
      p_ND = p_ND + gain_NS.narrow(1, i, 1) * moved;
    }
    return at::stack(predicted, 1);
  }

  Tensor others(const Tensor& h_NSD, const Branch& f, Context& context) const {
    Tensor x_ND = h_NSD.select(1, config_.active);
    if (correct_scale_)
      x_ND = x_ND * ops::spread(correct_scale_->tensor().to(x_ND.device(), x_ND.scalar_type()), x_ND);
    const Tensor in = f.read ? f.read(x_ND, context) : x_ND;
    const Tensor y_ND = damped(config_, f.norms[0]->forward(f.run(in, context), context), f, context);
    std::vector<Tensor> next{h_NSD.select(1, 0)};
    for (int64_t i = 1; i < config_.streams; ++i) next.push_back(h_NSD.select(1, i) + y_ND);
    return at::stack(next, 1);
  }

  /// m(x), [N, S].
  Tensor modalities(const Tensor& x_ND, const Context& context) const {
    const Tensor in = router_norm_->forward(x_ND, context.products) / static_cast<double>(width_);
    return ops::activate(router_(in, context), ops::Activation::tanh);
  }

  /// By a matrix of coefficients, which training clamps.
  Tensor product(const Linear& map, const Tensor& x, const Context& context) const {
    if (!context.training || config_.clip == 0) return map(x, context);
    return ops::linear(
        x,
        ops::Weight::dense(map.weight->name(),
                           map.weight->tensor(context.products).clamp(-config_.clip, config_.clip)),
        nullptr, context.products);
  }

  /// y, each row scaled to the root mean square of x's.
  static Tensor as_long_as(const Tensor& x_ND, const Tensor& y_ND) {
    const auto square = [](const Tensor& t) { return t.square().mean(-1, /*keepdim=*/true); };
    return y_ND * (square(x_ND).sqrt() / square(y_ND).clamp_min(1e-5).sqrt());
  }

  /// Those of the streams but the first; none where they are not declared.
  std::vector<Linear> maps(const Builder& builder) const {
    std::vector<Linear> out;
    for (int64_t s = 1; s < config_.streams && builder.optional(std::to_string(s) + ".weight"); ++s)
      out.emplace_back(builder, std::to_string(s));
    return out;
  }

  AltUpConfig config_;
  int64_t width_;
  std::unique_ptr<Norm> router_norm_, laurel_norm_;
  Linear router_, predict_, correct_, laurel_in_, laurel_out_;
  WeightPtr correct_scale_;
  std::vector<Linear> enter_, leave_;
};

}  // namespace

std::unique_ptr<Residual> build(const AltUpConfig& config, const Builder& builder) {
  return std::make_unique<AltUp>(config, builder);
}

}  // namespace tessera::nn
