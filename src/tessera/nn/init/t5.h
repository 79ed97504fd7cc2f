// T5's: products N(0, factor^2 / fan in), queries of width D further divided by sqrt(D) since their
// scores are not, tables and logits N(0, factor^2). Raffel et al. 2019, arXiv:1910.10683 (released
// code; with attention's scale "one").
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

struct T5InitConfig final : InitConfig {
  double factor = 1;

  static constexpr auto fields() {
    return std::tuple{
        spec::field("factor", &T5InitConfig::factor, "on every deviation", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "By fan-in, with the scale of scores inside the queries.",
            .paper = "Raffel et al.: Exploring the Limits of Transfer Learning with a Unified "
                     "Text-to-Text Transformer, arXiv:1910.10683",
            .year = 2019,
            .forms = {.recurrent = true}};
  }
  spec::Init draw(const spec::ParamDecl& decl, const InitSite&) const override {
    using Use = spec::Init::Use;
    const Use use = decl.init.use;
    if (use == Use::table || use == Use::logits) return spec::Init::normal(factor);
    double variance = 1 / Fans(decl).in;
    if (use == Use::query) variance /= static_cast<double>(decl.init.count);
    return spec::Init::normal(factor * std::sqrt(variance));
  }
};

}  // namespace tessera::nn
