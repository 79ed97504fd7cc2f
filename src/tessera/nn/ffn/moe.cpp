#include "tessera/nn/ffn/moe.h"

#include <map>

#include "tessera/nn/decode_step.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/ffn/moe_step.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/router/routing.h"
#include "tessera/nn/router/sorted_choices.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class Moe final : public Ffn {
 public:
  Moe(const MoeConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        d_in_(builder.scope().input_width()),
        d_model_(builder.scope().d_model),
        router_(build_router(
            config.router, builder.under("router", config.child_scope(builder.scope(), "router")))),
        expert_(build_ffn(config.expert,
                          builder.under("experts", config.child_scope(builder.scope(), "expert")))),
        bias_(builder.optional("bias")) {
    if (config.d_latent > 0) {
      latent_in_ = Linear(builder, "latent_in");
      latent_out_ = Linear(builder, "latent_out");
    }
    if (config.shared) shared_ = build_ffn(config.shared, builder.under("shared"));
    if (config.shared_gate) gate_ = Linear(builder, "shared_gate");
    for (const auto& [name, norm] : config.norms())
      if (*norm)
        norms_[name] =
            build_norm(*norm, builder.under(name, config.child_scope(builder.scope(), name)));
  }

  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const Tensor read_ND = jittered(x_ND, context);
    const Routing routing = router_->route(normed("router_norm", read_ND, context), context);
    Tensor y_ND = routing.slots
                      ? of_slots(*routing.slots, context)
                      : of_choices(normed("expert_norm", read_ND, context), routing, context);
    if (bias_ != nullptr)
      y_ND = y_ND + ops::over_rows(bias_->tensor().to(y_ND.device(), y_ND.scalar_type()), y_ND);
    y_ND = normed("expert_out_norm", y_ND, context);
    if (shared_ == nullptr) return y_ND;
    const Tensor in_ND = normed("shared_norm", x_ND, context);
    Tensor shared_ND = shared_->forward(in_ND, context);
    if (config_.shared_gate)
      shared_ND = shared_ND * ops::activate(gate_(in_ND, context), ops::Activation::sigmoid);
    return y_ND + normed("shared_out_norm", shared_ND, context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    return moe_step(
        {config_, *router_, *expert_, shared_.get(), gate_, latent_in_, latent_out_, bias_,
         [this](const char* name) -> const Norm* {
           const auto found = norms_.find(name);
           return found == norms_.end() ? nullptr : found->second.get();
         },
         d_in_, d_model_},
        products);
  }

 private:
  /// x, by the norm of that name where there is one.
  Tensor normed(const char* name, const Tensor& x, const Context& context) const {
    const auto found = norms_.find(name);
    return found == norms_.end() ? x : found->second->forward(x, context.products);
  }

  Tensor jittered(const Tensor& x_ND, const Context& context) const {
    if (!context.training || config_.jitter == 0) return x_ND;
    return x_ND * drawn_by_token(context, name_ + ".jitter", x_ND.size(0), x_ND.size(1),
                                 [this](const RandomKey& stream, uint64_t i) {
                                   return 1 + config_.jitter * (2.0 * stream.uniform(i) - 1);
                                 })
                      .to(x_ND.options());
  }

  Tensor of_experts(const Tensor& x_SD,
                    std::shared_ptr<const Groups> groups,
                    Context& context) const {
    const ExpertRows rows(context, std::move(groups));
    return expert_->forward(x_SD, context);
  }

  Tensor of_slots(const Routing::Slots& slots, Context& context) const {
    const Tensor y_SD = of_latent(of_experts(latent(slots.x_SD, context),
                                             std::make_shared<const Groups>(slots.groups), context),
                                  context);
    return slots.combine(config_.scale == 1 ? y_SD : y_SD * config_.scale);
  }

  Tensor of_choices(const Tensor& x_ND, const Routing& routing, Context& context) const {
    const bool masks = context.training && config_.expert_dropout > 0;
    const Tensor expert_NK = masks ? masked(routing.expert_NK, context) : routing.expert_NK;
    const SortedChoices sorted = sort_by_expert(expert_NK, config_.n_experts);
    const auto device = x_ND.device();
    const Tensor weight_NK =
        config_.scale == 1 ? routing.weight_NK : routing.weight_NK * config_.scale;
    const Tensor read_ND = latent(x_ND, context);
    Tensor x_SD = read_ND.index_select(0, sorted.token_S.to(device));
    if (config_.scale_input)
      x_SD = x_SD * weight_NK.reshape({-1})
                        .index_select(0, sorted.choice_S.to(device))
                        .unsqueeze(1)
                        .to(x_SD.scalar_type());
    const Tensor y_SD = of_experts(x_SD, sorted.groups, context);
    // added up in the order of the choices, in float32 or double
    Tensor sum = at::zeros({x_ND.size(0), y_SD.size(1)}, y_SD.options().dtype(ops::wide(y_SD)));
    for (int64_t j = 0; j < expert_NK.size(1); ++j) {
      const Tensor expert_N = expert_NK.select(1, j);
      const Tensor weight_N1 = weight_NK.narrow(1, j, 1).to(sum.scalar_type());
      sum = with_choice(sum, j, y_SD, sorted, config_.scale_input ? Tensor() : weight_N1);
      if (config_.identity > 0)
        sum = at::where((expert_N >= config_.n_experts + config_.zero).unsqueeze(1).to(device),
                        sum + x_ND.to(sum.scalar_type()) * weight_N1, sum);
    }
    if (masks) sum = sum / (1 - config_.expert_dropout);
    return of_latent(sum.to(y_SD.scalar_type()), context);
  }

  /// Choices [N, K] without those that are left out: -1.
  Tensor masked(const Tensor& expert_NK, const Context& context) const {
    require(context.batch->n_tokens() == expert_NK.size(0), name_, "{} tokens of a call of {}",
            expert_NK.size(0), context.batch->n_tokens());
    Tensor kept = expert_NK.clone(at::MemoryFormat::Contiguous);
    auto* expert = kept.data_ptr<int64_t>();
    const int64_t k = kept.size(1);
    const RandomKey site = context.key.fold(name_ + ".expert_dropout");
    for (const Segment& s : context.batch->segments) {
      const RandomKey stream = s.stream(site);
      for (int64_t i = 0; i < s.length * k; ++i)
        if (int64_t& e = expert[s.begin * k + i];
            e >= 0 && stream.uniform(static_cast<uint64_t>(i / k * config_.choices() + e)) <
                          config_.expert_dropout)
          e = -1;
    }
    return kept;
  }

  /// What experts read, and what is made of their sum.
  Tensor latent(const Tensor& x_ND, const Context& context) const {
    return latent_in_.weight ? latent_in_(x_ND, context) : x_ND;
  }
  Tensor of_latent(const Tensor& y_ND, const Context& context) const {
    return latent_out_.weight ? latent_out_(y_ND, context) : y_ND;
  }

  MoeConfig config_;
  std::string name_;
  int64_t d_in_, d_model_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Ffn> expert_, shared_;
  WeightPtr bias_;
  Linear gate_, latent_in_, latent_out_;
  std::map<std::string, std::unique_ptr<Norm>> norms_;
};

}  // namespace

std::unique_ptr<Ffn> build(const MoeConfig& config, const Builder& builder) {
  return std::make_unique<Moe>(config, builder);
}

}  // namespace tessera::nn
