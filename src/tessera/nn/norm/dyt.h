// Dynamic tanh, a norm without statistics: y = tanh(alpha x) * w + b, one alpha.
// Zhu et al. 2025, arXiv:2503.10622, sec. 4; alpha_0 = 0.5, in language models larger before
// attention than elsewhere (sec. 7).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct DytConfig final : spec::Config {
  double alpha = 0.5;

  static constexpr auto fields() {
    return std::tuple{
        spec::field("alpha", &DytConfig::alpha, "what the learned factor inside begins as")};
  }
  static spec::Info info() {
    return {.summary = "A tanh with a learned factor instead of statistics.",
            .paper = "Zhu et al.: Transformers without Normalization, arXiv:2503.10622",
            .year = 2025,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"alpha", {1}, spec::Init::constant(alpha), spec::ParamKind::norm});
    list.add({"weight", {scope.width}, spec::Init::constant(1), spec::ParamKind::norm});
    list.add({"bias", {scope.width}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
