// Layer dropout: in training a sample passes by a layer with a probability that grows with the
// depth, p_l = p (2^{l / (L - 1)} - 1) (`grows`), or with the same p in all; nothing is rescaled.
// Inference runs every layer. Elhoushi et al. 2024 (LayerSkip), arXiv:2404.16710, sec. 4.1.1; with
// one p: Fan, Grave, Joulin 2019 (LayerDrop), arXiv:1909.11556.
#pragma once

#include <cmath>

#include "tessera/nn/depth/depth_config.h"

namespace tessera::nn {

struct LayerDropConfig final : DepthConfig {
  double p = 0.1;
  bool grows = true;

  static constexpr auto fields() {
    using C = LayerDropConfig;
    return std::tuple{
        spec::field("p", &C::p, "probability, of the last layer where it grows",
                    {.min = 0, .below = 1}),
        spec::field("grows", &C::grows, "whether it grows from 0 at the first layer")};
  }
  static spec::Info info() {
    return {.summary = "In training, samples pass by a layer at random.",
            .paper =
                "Elhoushi et al.: LayerSkip, arXiv:2404.16710; Fan, Grave, Joulin: LayerDrop, "
                "arXiv:1909.11556",
            .year = 2019,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void check(const spec::Scope&) const override {}
  /// Of layer `layer` of `n_layers`.
  double probability(int64_t layer, int64_t n_layers) const {
    if (!grows) return p;
    if (n_layers < 2) return 0;
    return p * (std::exp2(static_cast<double>(layer) / static_cast<double>(n_layers - 1)) - 1);
  }
};

}  // namespace tessera::nn
