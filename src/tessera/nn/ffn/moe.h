// Mixture of experts: a router gives every token a few of E feed-forward layers.
//   y = scale * sum_j w_j F_{e_j}(x) [+ b]  [+ S(x), or sigmoid(W_s x) S(x), of a shared expert S]
// in the order of the choices j. With scale_input an expert reads w_j x and its output is added as
// it is (Llama 4). After the E experts the router may choose `zero` ones that add nothing and
// `identity` ones that add w_j x (LongCat-Flash, arXiv:2509.01322, sec. 2.1; MoE++,
// arXiv:2410.07348).
//
// With d_latent experts work in a space of their own, cheaper to reach than the token's: an expert
// reads W_in x, and W_out acts on the weighted sum; router and shared layer read x (Nemotron 3).
//
// Router, experts and shared layer may each have a norm of what they read, and experts and shared
// layer one of what they make; a residual that normalises no input leaves it to these (Gemma 4).
//
// In training an expert may drop hidden values (its own `dropout`: Fedus et al. 2021,
// arXiv:2101.03961, sec. 2.4), and with expert_dropout p a token's choices are left out, each with
// probability p, and the others count 1 / (1 - p): expert output masking, NLLB Team 2022,
// arXiv:2207.04672, sec. 6.2. What routers count and lose stays as it was chosen. Both draw by
// token and expert, so that no split of a batch changes them. With jitter e router and experts read
// x times numbers of [1 - e, 1 + e) then (Mixtral's router_jitter_noise; that of Fedus et al. is
// the router's own).
//
// Experts are any feed-forward layer that is made of products: their weights are stacked,
// experts.up.weight [E, out, in], and tokens are sorted by expert, so that each product is one call
// over all experts. A token's output does not depend on the rest of the call, unless the router's
// choice does (capacity.h). Shazeer et al. 2017, arXiv:1701.06538; shared experts: Dai et al. 2024,
// arXiv:2401.06066 (DeepSeekMoE).
#pragma once

#include "tessera/nn/ffn/ffn_dropout.h"
#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct MoeConfig final : spec::Config, FfnDropout {
  int64_t n_experts = 0;
  spec::Part<spec::Slot::router> router;
  spec::Part<spec::Slot::ffn> expert;
  spec::Part<spec::Slot::ffn> shared;
  bool shared_gate = false;
  spec::Part<spec::Slot::norm> router_norm;
  spec::Part<spec::Slot::norm> expert_norm;
  spec::Part<spec::Slot::norm> expert_out_norm;
  spec::Part<spec::Slot::norm> shared_norm;
  spec::Part<spec::Slot::norm> shared_out_norm;
  int64_t d_latent = 0;
  bool scale_input = false;
  double scale = 1;
  bool bias = false;
  int64_t zero = 0;
  int64_t identity = 0;
  double expert_dropout = 0;
  double jitter = 0;

  static constexpr auto fields() {
    using C = MoeConfig;
    return std::tuple{
        spec::field("n_experts", &C::n_experts, "E", {.min = 1, .required = true}),
        spec::field("zero", &C::zero, "further choices that add nothing", {.min = 0}),
        spec::field("identity", &C::identity, "further choices that add the token itself",
                    {.min = 0}),
        spec::field("router", &C::router, "who computes which token", {.part = "top_k"}),
        spec::field("expert", &C::expert, "the layer that each expert is", {.required = true}),
        spec::field("shared", &C::shared,
                    "shared expert: a further layer that computes every token"),
        spec::field("shared_gate", &C::shared_gate,
                    "whether a learned gate of the token scales the shared layer's output"),
        spec::field("router_norm", &C::router_norm, "norm of what the router reads"),
        spec::field("expert_norm", &C::expert_norm, "norm of what the experts read"),
        spec::field("expert_out_norm", &C::expert_out_norm, "norm of the sum of the experts"),
        spec::field("shared_norm", &C::shared_norm,
                    "norm of what the shared layer and its gate read"),
        spec::field("shared_out_norm", &C::shared_out_norm, "norm of the shared layer's output"),
        spec::field("d_latent", &C::d_latent,
                    "channels that experts read and make, between two projections; 0 = those of "
                    "the layer",
                    {.min = 0}),
        spec::field("scale_input", &C::scale_input,
                    "whether weights act on what experts read instead of what they make"),
        spec::field("scale", &C::scale, "factor on the weights"),
        spec::field("bias", &C::bias, "whether the sum of the experts has a bias"),
        spec::field("expert_dropout", &C::expert_dropout,
                    "probability that a token's expert is left out, in training",
                    {.min = 0, .below = 1}),
        spec::field("jitter", &C::jitter,
                    "in training what router and experts read is multiplied by numbers of [1 - "
                    "jitter, 1 + jitter)",
                    {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "A few experts of many for every token, chosen by a router.",
            .paper =
                "Shazeer et al.: Outrageously Large Neural Networks: The Sparsely-Gated "
                "Mixture-of-Experts Layer, arXiv:1701.06538; Dai et al.: DeepSeekMoE, "
                "arXiv:2401.06066",
            .year = 2017,
            .forms = {.recurrent = true},
            .any_width = true};
  }
  static spec::Json example(const spec::Scope& scope, int64_t length);
  spec::Scope child_scope(spec::Scope scope, std::string_view field) const;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  double hidden_dropout() const override { return expert_dropout > 0 ? expert_dropout : jitter; }
  std::string_view dropout_name() const override {
    return expert_dropout > 0 ? "expert_dropout" : "jitter";
  }
  std::string no_state_reason() const override { return router.config->no_state_reason(); }
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
  /// What the router chooses from.
  int64_t choices() const { return n_experts + zero + identity; }

  /// Its norms and their names.
  std::vector<std::pair<const char*, const spec::AnyPart*>> norms() const;

 private:
  double used_share(const spec::Scope& scope) const;
};

}  // namespace tessera::nn
