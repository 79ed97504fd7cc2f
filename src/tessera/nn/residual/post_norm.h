// x = N(a x + f(x)); no norm after the last layer.
// Vaswani et al.: Attention Is All You Need, arXiv:1706.03762; a = (2L)^{1/4} in a decoder is
// DeepNorm, Wang et al. 2022, arXiv:2203.00555.
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

struct PostNormConfig final : ResidualConfig {
  double stream = 1;

  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("stream", &PostNormConfig::stream, "a, factor on the stream")},
        common_fields<PostNormConfig>());
  }
  static spec::Info info() {
    return {.summary = "The sum of stream and branch is normalised.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true, .recorded = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
  bool takes_inputs() const override { return true; }
  bool wants_final_norm() const override { return false; }
};

}  // namespace tessera::nn
