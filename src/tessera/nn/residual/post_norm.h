// x = N(x + f(x)); no norm after the last layer.
// Vaswani et al.: Attention Is All You Need, arXiv:1706.03762
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct PostNormConfig final : ResidualConfig {
  static constexpr auto fields() { return common_fields<PostNormConfig>(); }
  static spec::Info info() {
    return {.summary = "The sum of stream and branch is normalised.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
  bool wants_final_norm() const override { return false; }
};

}  // namespace tessera::nn
