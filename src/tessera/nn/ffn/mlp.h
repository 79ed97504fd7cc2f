// Plain feed-forward layer: y = W_down act(W_up x + b_up) + b_down.
// Vaswani et al. 2017, arXiv:1706.03762, sec. 3.3. With a slope s the activation is act(s h) / s:
// silu makes it Swish, h sigmoid(s h), with s given or learned. Ramachandran et al. 2017,
// arXiv:1710.05941. inner_norm is of act(..), before W_down (sub-LN). Wang et al. 2022,
// arXiv:2210.06423. In groups of channels both matrices are block-diagonal (channel_groups.h).
#pragma once

#include <cmath>

#include "tessera/nn/activation.h"
#include "tessera/nn/channel_groups.h"
#include "tessera/nn/ffn/ffn_dropout.h"
#include "tessera/nn/ffn/slope.h"

namespace tessera::nn {

/// Groups of channels of either product.
struct MlpGroups {
  int64_t up = 1, down = 1;
  static constexpr auto fields() {
    using C = MlpGroups;
    return std::tuple{spec::field("up", &C::up, "of the first product", {.min = 1}),
                      spec::field("down", &C::down, "of the last product", {.min = 1})};
  }
};

struct MlpConfig final : spec::Config, FfnDropout {
  Activation act = Activation::gelu;
  int64_t d_hidden = 0;
  bool bias = true;
  MlpGroups groups;
  double slope = 1;
  bool learned_slope = false;
  spec::Part<spec::Slot::norm> inner_norm;
  double dropout = 0;

  static constexpr auto fields() {
    using C = MlpConfig;
    return std::tuple{
        spec::field("act", &C::act, "activation"),
        spec::field("d_hidden", &C::d_hidden,
                    "hidden width, or a rule such as \"8/3, multiple of 256\" of d_model",
                    {.min = 1, .required = true, .width = true}),
        spec::field("bias", &C::bias, "bias of both products"),
        spec::field("groups", &C::groups,
                    "groups of channels that the products keep apart (grouped 1x1 convolutions); "
                    "1 = whole matrices"),
        spec::field("slope", &C::slope, "s in act(s h) / s: with silu the beta of Swish",
                    {.min = 1e-9}),
        spec::field("learned_slope", &C::learned_slope, "whether s is learned; of silu alone"),
        spec::field("inner_norm", &C::inner_norm,
                    "norm of the hidden values before the last "
                    "product (sub-LN)"),
        spec::field("dropout", &C::dropout, "probability on the hidden values, in training",
                    {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {.summary = "Two products with an activation between.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true, .recorded = true},
            .any_width = true};
  }
  double hidden_dropout() const override { return dropout; }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = d_hidden;
    return scope;
  }
  void check(const spec::Scope& scope) const override {
    check_slope(act, slope, learned_slope, scope);
    check_channel_groups("up", {d_hidden, scope.input_width()}, groups.up, scope);
    check_channel_groups("down", {scope.d_model, d_hidden}, groups.down, scope);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    declare_grouped_linear(list, "up", {d_hidden, scope.input_width()}, groups.up, bias,
                           spec::Init::content());
    declare_grouped_linear(list, "down", {scope.d_model, d_hidden}, groups.down, bias,
                           spec::Init::into_stream(scope.n_layers));
    declare_slope(list, slope, learned_slope);
    if (inner_norm) inner_norm.config->params_under(list, "inner_norm", child_scope(scope, ""));
  }
};

}  // namespace tessera::nn
