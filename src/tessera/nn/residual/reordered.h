// x = x + N(f(x)), or s (x + N(f(x))) with a learned s; the stack ends with a norm.
// OLMo team: 2 OLMo 2 Furious, arXiv:2501.00656
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct ReorderedConfig final : ResidualConfig {
  static constexpr auto fields() { return sum_fields<ReorderedConfig>(); }
  static spec::Info info() {
    return {.summary = "The branch's output is normalised, its input is not (OLMo 2).",
            .paper = "OLMo team: 2 OLMo 2 Furious, arXiv:2501.00656",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
  bool takes_inputs() const override { return true; }
};

}  // namespace tessera::nn
