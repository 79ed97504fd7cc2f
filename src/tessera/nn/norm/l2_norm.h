// L2 norm: y = g x / sqrt(|x|^2 + eps), statistics in float32 or better. Without g and on queries
// and keys it makes attention compare directions (cosine attention), with one g for all channels it
// is ScaleNorm.
// Henry et al. 2020, arXiv:2010.04245; Nguyen and Salazar 2019, arXiv:1910.05895.
#pragma once

#include <cmath>

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class L2Weight {
  none,    // unit vectors
  scalar,  // one g, which starts at sqrt(channels)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::L2Weight> {
  static constexpr std::array names{std::pair{nn::L2Weight::none, "none"},
                                    std::pair{nn::L2Weight::scalar, "scalar"}};
};

namespace tessera::nn {

struct L2NormConfig final : spec::Config {
  double eps = 1e-12;
  L2Weight weight = L2Weight::none;

  static constexpr auto fields() {
    using C = L2NormConfig;
    return std::tuple{spec::field("eps", &C::eps, "added to the sum of squares", {.min = 0}),
                      spec::field("weight", &C::weight, "the factor on unit vectors")};
  }
  static spec::Info info() {
    return {.summary = "Scales every token to unit length, or to one learned length (ScaleNorm).",
            .paper =
                "Henry et al.: Query-Key Normalization for Transformers, arXiv:2010.04245; Nguyen, "
                "Salazar: Transformers without Tears, arXiv:1910.05895",
            .year = 2019,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(weight == L2Weight::scalar,
                {"weight",
                 {1},
                 spec::Init::constant(std::sqrt(static_cast<double>(scope.width))),
                 spec::ParamKind::norm});
  }
};

}  // namespace tessera::nn
