// A convolution over the tokens as a mixer of its own, and an activation.
//   y_t = act(bias + sum_k W_k x_(t + k - left))
// An encoder sees both sides (left = kernel / 2), a decoder the past alone (left = kernel - 1).
// Outside of a document stand zeros.
// Gehring et al. 2017, arXiv:1705.03122. Parallel to the first layer, with its input, it is
// the convolution of the larger DeBERTa 2 models: inputs ["embedding"] under a post_norm.
#pragma once

#include "tessera/nn/activation.h"

namespace tessera::nn {

struct ConvolutionConfig final : spec::Config {
  int64_t kernel = 3;
  int64_t groups = 1;
  Activation act = Activation::identity;
  bool bias = true;

  static constexpr auto fields() {
    using C = ConvolutionConfig;
    using spec::field;
    return std::tuple{field("kernel", &C::kernel, "taps, the present included", {.min = 2}),
                      field("groups", &C::groups,
                            "groups of channels, divides d_model; d_model "
                            "groups = every channel alone",
                            {.min = 1}),
                      field("act", &C::act, "activation of the sum"),
                      field("bias", &C::bias, "whether it has a bias")};
  }
  static spec::Info info() {
    return {
        .summary = "A convolution over neighbouring tokens, in groups of channels.",
        .paper = "Gehring et al.: Convolutional Sequence to Sequence Learning, arXiv:1705.03122",
        .year = 2017,
        .forms = {.parallel = true, .recurrent = true}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
