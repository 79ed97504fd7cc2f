// x = x + f(N(x)), or s (x + f(N(x))) with a learned s; the stack ends with a norm.
// Xiong et al.: On Layer Normalization in the Transformer Architecture, arXiv:2002.04745
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct PreNormConfig final : ResidualConfig {
  static constexpr auto fields() { return sum_fields<PreNormConfig>(); }
  static spec::Info info() {
    return {.summary = "The branch reads a normalised copy of the stream.",
            .paper =
                "Xiong et al.: On Layer Normalization in the Transformer Architecture, "
                "arXiv:2002.04745",
            .year = 2020,
            .forms = {.recurrent = true, .recorded = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
  bool takes_inputs() const override { return true; }
  bool norms_input() const override { return true; }
};

}  // namespace tessera::nn
