// DeepNorm's: Var W = g^2 * 2 / (fan in + fan out), with g = beta for values, hidden units and what
// leads back into the stream, 1 for the other products; with post_norm of `stream` alpha:
//   one stack of L layers:      alpha = (2L)^{1/4},              beta = (8L)^{-1/4}
//   encoder of N with M:        alpha = 0.81 (N^4 M)^{1/16},     beta = 0.87 (N^4 M)^{-1/16}
//   decoder of M layers:        alpha = (3M)^{1/4},              beta = (12M)^{-1/4}
// Wang et al. 2022, arXiv:2203.00555, fig. 2; tables and logits N(0, 1/d) as in the released code.
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

/// alpha and beta of a stack.
struct DeepNormGains {
  double alpha, beta;
  explicit DeepNormGains(const InitSite& site) {
    const auto n = static_cast<double>(site.n_layers);
    alpha = std::pow(2 * n, 0.25);
    beta = std::pow(8 * n, -0.25);
    if (site.encoder_layers == 0) return;
    const auto m = static_cast<double>(site.decoder_layers);
    const double both = std::pow(std::pow(static_cast<double>(site.encoder_layers), 4) * m, 1.0 / 16);
    alpha = site.of_encoder ? 0.81 * both : std::pow(3 * m, 0.25);
    beta = site.of_encoder ? 0.87 / both : std::pow(12 * m, -0.25);
  }
};

struct DeepNormInitConfig final : InitConfig {
  std::optional<double> beta;

  static constexpr auto fields() {
    return std::tuple{spec::field("beta", &DeepNormInitConfig::beta,
                                  "gain of values, hidden units and outputs; null = by the layers",
                                  {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Gains that shrink with depth, for post-norm stacks of hundreds of layers.",
            .paper = "Wang et al.: DeepNet: Scaling Transformers to 1,000 Layers, arXiv:2203.00555",
            .year = 2022,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl& decl, const InitSite& site) const override {
    using Use = spec::Init::Use;
    const Use use = decl.init.use;
    if (use == Use::table || use == Use::logits)
      return spec::Init::normal(1 / std::sqrt(static_cast<double>(site.d_model)));
    const bool scaled = use == Use::content || use == Use::output;
    const double gain = scaled ? beta.value_or(DeepNormGains(site).beta) : 1;
    const Fans fans(decl);
    return spec::Init::normal(gain * std::sqrt(2 / (fans.in + fans.out)));
  }
};

}  // namespace tessera::nn
