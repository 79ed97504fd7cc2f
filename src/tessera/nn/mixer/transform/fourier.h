// Fourier mixing: Y = Re(F_T X F_D), the discrete Fourier transforms of tokens and channels,
// without parameters; or the same with other matrices, W_tokens X W_channels^T, learned or random
// and fixed; or a blend, a Re(F_T X F_D) + (1 - a) W_tokens X W_channels^T. The real part is taken
// once, or after either transform, Re(F_T Re(X F_D)). Lee-Thorp et al. 2021, arXiv:2105.03824;
// golden: tools/golden/mixer_options.py. Encoders only: every output reads the whole document.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class Transform {
  fourier,  // the discrete Fourier transform, unnormalised
  learned,  // two trained matrices ("Linear" in the paper)
  random,   // the same, drawn once and fixed ("Random")
};

enum class RealPart { once, each };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RealPart> {
  static constexpr std::array names{std::pair{nn::RealPart::once, "once"},
                                    std::pair{nn::RealPart::each, "each"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::Transform> {
  using T = nn::Transform;
  static constexpr std::array names{std::pair{T::fourier, "fourier"},
                                    std::pair{T::learned, "learned"},
                                    std::pair{T::random, "random"}};
};

namespace tessera::nn {

struct FourierConfig final : spec::Config {
  Transform transform = Transform::fourier;
  RealPart real = RealPart::once;
  double blend = 1;
  int64_t max_length = 0;
  int64_t seed = 0;

  static constexpr auto fields() {
    using C = FourierConfig;
    using spec::field;
    return std::tuple{
        field("transform", &C::transform, "which matrices mix"),
        field("real", &C::real, "of `fourier`: the real part once, or after either transform"),
        field(
            "blend", &C::blend,
            "a: mix of a times `fourier` and 1 - a times two learned matrices; 1 = `fourier` only",
            {.min = 0, .max = 1}),
        field("max_length", &C::max_length,
              "longest document; what has matrices over tokens needs it, for `fourier` 0 = any",
              {.min = 0}),
        field("seed", &C::seed, "of the matrices of `random`", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Mixes tokens and channels by Fourier transforms, without parameters.",
            .paper =
                "Lee-Thorp et al.: FNet: Mixing Tokens with Fourier Transforms, "
                "arXiv:2105.03824",
            .year = 2021,
            .causality = spec::Causality::none,
            .forms = {},
            .time = spec::Growth::linear_log};
  }
  /// Whether it has matrices that are trained.
  bool learns() const { return transform == Transform::learned || blend != 1; }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return max_length; }
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
