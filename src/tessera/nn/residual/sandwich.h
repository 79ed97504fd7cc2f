// x = x + N2(f(N1(x))), or s (x + N2(f(N1(x)))) with a learned s; the stack ends with a norm.
// Ding et al.: CogView, arXiv:2105.13290, sec. 2.4
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct SandwichConfig final : ResidualConfig {
  static constexpr auto fields() { return sum_fields<SandwichConfig>(); }
  static spec::Info info() {
    return {.summary = "Norms before and after the branch, inside the residual (Gemma 2 and 3).",
            .paper = "Ding et al.: CogView, arXiv:2105.13290, sec. 2.4",
            .year = 2021,
            .forms = {.recurrent = true, .recorded = true}};
  }
  std::vector<std::string> norms() const override { return {"norm", "post_norm"}; }
};

}  // namespace tessera::nn
