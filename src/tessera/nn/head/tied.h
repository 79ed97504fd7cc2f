// Output matrix = token embedding.
// Press, Wolf 2016, arXiv:1608.05859.
#pragma once

#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TiedHeadConfig final : HeadConfig {
  bool tied() const override { return true; }
  static constexpr auto fields() { return common_fields<TiedHeadConfig>(); }
  static spec::Info info() {
    return {
        .summary = "Logits from the transposed token embedding.",
        .paper =
            "Press, Wolf: Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
        .year = 2016,
        .forms = {.recurrent = true}};
  }
};

}  // namespace tessera::nn
