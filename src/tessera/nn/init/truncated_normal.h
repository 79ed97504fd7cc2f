// W ~ N(0, std^2), drawn again while it is further than `cut` standard deviations from 0.
// Devlin et al. 2018, arXiv:1810.04805 (released code).
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

struct TruncatedNormalInitConfig final : InitConfig {
  double std = 0.02, cut = 2;

  static constexpr auto fields() {
    using C = TruncatedNormalInitConfig;
    return std::tuple{
        spec::field("std", &C::std, "standard deviation before it is cut", {.min = 0}),
        spec::field("cut", &C::cut, "largest distance from 0, in standard deviations",
                    {.min = 0.1})};
  }
  static spec::Info info() {
    return {.summary = "A normal distribution without its tails.",
            .paper = "Devlin et al.: BERT: Pre-training of Deep Bidirectional Transformers for "
                     "Language Understanding, arXiv:1810.04805",
            .year = 2018,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl&, const InitSite&) const override {
    return spec::Init::truncated_normal(std, cut);
  }
};

}  // namespace tessera::nn
