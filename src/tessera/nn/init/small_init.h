// W ~ N(0, 2 / 5d); what leads back into the stream of L layers N(0, (2 / (L sqrt(d)))^2).
// Nguyen, Salazar 2019, arXiv:1910.05895, sec. 2.2; outputs as in GPT-NeoX-20B, Black et al. 2022,
// arXiv:2204.06745.
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

struct SmallInitConfig final : InitConfig {
  static constexpr auto fields() { return std::tuple{}; }
  static spec::Info info() {
    return {.summary = "Small values by the model's width, smaller outputs in deeper stacks.",
            .paper = "Nguyen, Salazar: Transformers without Tears, arXiv:1910.05895",
            .year = 2019,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl& decl, const InitSite& site) const override {
    const auto d = static_cast<double>(site.d_model);
    if (decl.init.use == spec::Init::Use::output)
      return spec::Init::normal(2 / (static_cast<double>(decl.init.count) * std::sqrt(d)));
    return spec::Init::normal(std::sqrt(2 / (5 * d)));
  }
};

}  // namespace tessera::nn
