// The loss from which indexers learn: the KL divergence of their scores from the weights of the
// attention whose keys they choose. No gradient passes the choice itself.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct IndexLossConfig {
  double kl_loss = 1;

  static constexpr auto fields() {
    return std::tuple{spec::field(
        "kl_loss", &IndexLossConfig::kl_loss,
        "factor on the KL divergence of its scores from the attention's weights, from which it "
        "learns; 0 = it does not learn",
        {.min = 0})};
  }
};

}  // namespace tessera::nn
