// W ~ N(0, std^2), and N(0, std^2 / 2L) for what leads back into the stream of L layers, to which
// 2L branches add. Radford et al. 2019 (GPT-2), 2.3.
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

struct ResidualScaledInitConfig final : InitConfig {
  double std = 0.02;

  static constexpr auto fields() {
    return std::tuple{
        spec::field("std", &ResidualScaledInitConfig::std, "standard deviation", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Normal; what leads back into the stream is smaller in deeper stacks.",
            .paper = "Radford et al.: Language Models are Unsupervised Multitask Learners, 2019",
            .year = 2019,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl& decl, const InitSite&) const override {
    return spec::Init::normal(decl.init.use == spec::Init::Use::output
                                  ? std / std::sqrt(2.0 * static_cast<double>(decl.init.count))
                                  : std);
  }
};

}  // namespace tessera::nn
