// KERPLE: a penalty by a learned kernel of the distance, per head.
//   log:    b_h(i, j) = -r1_h ln(1 + r2_h |i - j|)
//   power:  b_h(i, j) = -a_h |i - j|^p_h,  p <= 2        (p = 1 with fixed a is ALiBi)
// All parameters are held at 0.01 or more.
// Chi, Fan, Ramadge, Rudnicky 2022, arXiv:2205.09921. Golden: positions 16.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class KerpleKernel { log, power };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::KerpleKernel> {
  static constexpr std::array names{std::pair{nn::KerpleKernel::log, "log"},
                                    std::pair{nn::KerpleKernel::power, "power"}};
};

namespace tessera::nn {

struct KerpleConfig final : PositionConfig {
  static constexpr double kLeast = 0.01, kGreatestPower = 2;
  KerpleKernel kernel = KerpleKernel::log;

  static constexpr auto fields() {
    using C = KerpleConfig;
    return std::tuple{spec::field("kernel", &C::kernel, "how the penalty grows")};
  }
  static spec::Info info() {
    return {.summary = "Subtracts a learned logarithm or power of the distance from the scores.",
            .paper =
                "Chi et al.: KERPLE: Kernelized Relative Positional Embedding for Length "
                "Extrapolation, arXiv:2205.09921",
            .year = 2022,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  bool by_distance() const override { return true; }
  void check(const spec::Scope& scope) const override { require_scores("kerple", scope); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
