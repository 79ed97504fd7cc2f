// No position information (NoPE): order is known only through causality.
// Kazemnejad et al. 2023, arXiv:2305.19466.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct NoPositionConfig final : PositionConfig {
  static constexpr auto fields() { return std::tuple{}; }
  static spec::Info info() {
    return {.summary = "Adds nothing (NoPE): a causal model infers order from what it can see.",
            .paper =
                "Kazemnejad et al.: The Impact of Positional Encoding on Length Generalization, "
                "arXiv:2305.19466",
            .year = 2023,
            .forms = {.recurrent = true, .recorded = true}};
  }
};

}  // namespace tessera::nn
