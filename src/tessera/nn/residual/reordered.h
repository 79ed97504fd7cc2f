// x = x + N(f(x)); the stack ends with a norm.
// OLMo team: 2 OLMo 2 Furious, arXiv:2501.00656
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct ReorderedConfig final : ResidualConfig {
  static constexpr auto fields() { return common_fields<ReorderedConfig>(); }
  static spec::Info info() {
    return {.summary = "The branch's output is normalised, its input is not (OLMo 2).",
            .paper = "OLMo team: 2 OLMo 2 Furious, arXiv:2501.00656",
            .year = 2024,
            .forms = {.recurrent = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
};

}  // namespace tessera::nn
