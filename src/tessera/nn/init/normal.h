// W ~ N(0, std^2), all alike.
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

struct NormalInitConfig final : InitConfig {
  double std = 0.02;

  static constexpr auto fields() {
    return std::tuple{spec::field("std", &NormalInitConfig::std, "standard deviation", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "One normal distribution for all matrices and tables.",
            .paper = "Radford et al.: Improving Language Understanding by Generative Pre-Training, "
                     "2018",
            .year = 2018,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl&, const InitSite&) const override {
    return spec::Init::normal(std);
  }
};

}  // namespace tessera::nn
