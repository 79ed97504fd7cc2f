// Every key, or in a causal model every key up to the query's own.
// Vaswani et al. 2017, arXiv:1706.03762.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct FullPatternConfig final : PatternBase<FullPatternConfig> {
  static constexpr auto fields() { return std::tuple{}; }
  static spec::Info info() {
    return {.summary = "Every query sees every key (causal: every earlier one).",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true, .recorded = true},
            .time = spec::Growth::quadratic};
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t /*head*/,
                       int64_t query,
                       int64_t key) const override {
    return !site.causal || key <= query ? 1 : 0;
  }
  std::optional<int64_t> window() const override { return 0; }
};

}  // namespace tessera::nn
