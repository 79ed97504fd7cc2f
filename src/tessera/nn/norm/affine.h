// A factor and an offset for every channel, without statistics: y = x * w + b.
// Sun et al. 2020, arXiv:2004.02984, sec. 3.5 (MobileBERT's NoNorm); Touvron et al. 2021,
// arXiv:2105.03404 (ResMLP's Aff).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct AffineConfig final : spec::Config {
  static constexpr auto fields() { return std::tuple{}; }
  static spec::Info info() {
    return {.summary = "A factor and an offset for every channel, without statistics.",
            .paper =
                "Sun et al.: MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited "
                "Devices, arXiv:2004.02984",
            .year = 2020,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"weight", {scope.width}, spec::Init::constant(1), spec::ParamKind::norm});
    list.add({"bias", {scope.width}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
