// Maximal update parametrisation: a learning rate found at width d0 holds at every width
// d = m d0. With Adam:
//                            deviation                      rate
//   tables                   std                            1
//   products                 std / sqrt(m)                  1 / m
//   into the stream          std / sqrt(2 L m)              1 / m
//   logits of their own      std / m                        1 / m
// All widths grow together; heads keep their width. A tied head takes its table's deviation and
// rate, so that its logits are divided by m (`scale`). What mechanisms draw by formulas of their own
// keeps them; of these, matrices get the rate 1 / m.
// Yang et al. 2022, arXiv:2203.03466, tables 3 and 8.
#pragma once

#include "tessera/nn/init/init_config.h"

namespace tessera::nn {

struct MupInitConfig final : InitConfig {
  int64_t base_d_model = 0;
  double std = 0.02;

  static constexpr auto fields() {
    using C = MupInitConfig;
    return std::tuple{spec::field("base_d_model", &C::base_d_model,
                                  "d0, the width at which a recipe's rate was found",
                                  {.min = 1, .required = true}),
                      spec::field("std", &C::std, "standard deviation at that width", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Deviations and learning rates that carry over from one width to another.",
            .paper = "Yang et al.: Tensor Programs V: Tuning Large Neural Networks via Zero-Shot "
                     "Hyperparameter Transfer, arXiv:2203.03466",
            .year = 2022,
            .forms = {.recurrent = true}};
  }
  double ratio(int64_t d_model) const {
    return static_cast<double>(d_model) / static_cast<double>(base_d_model);
  }
  spec::Init draw(const spec::ParamDecl& decl, const InitSite& site) const override {
    const double m = ratio(site.d_model);
    switch (decl.init.use) {
      case spec::Init::Use::table:
        return spec::Init::normal(std);
      case spec::Init::Use::logits:
        return spec::Init::normal(std / m);
      case spec::Init::Use::output:
        return spec::Init::normal(std /
                                  std::sqrt(2 * static_cast<double>(decl.init.count) * m));
      default:
        return spec::Init::normal(std / std::sqrt(m));
    }
  }
  double lr_factor(const spec::ParamDecl& decl, const InitSite& site) const override {
    const bool table = decl.init.use == spec::Init::Use::table;
    return decl.kind == spec::ParamKind::matrix && !table ? 1 / ratio(site.d_model) : 1;
  }
  void check_head(bool tied, double scale, const spec::Scope& scope) const override {
    const double wanted = 1 / ratio(scope.d_model);
    if (tied && std::abs(scale - wanted) > 1e-6 * wanted)
      fail(ErrorKind::spec, scope.path,
           "a tied head with scale = {} under init mup; expected {} = base_d_model / d_model, or a "
           "head of its own (\"linear\")",
           scale, wanted);
  }
};

}  // namespace tessera::nn
