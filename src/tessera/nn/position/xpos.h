// xPos: rotary positions whose pairs also fade with the distance, the fast ones most.
//   q'_n = zeta^(n/B) R(n) q_n,   k'_j = zeta^(-j/B) R(j) k_j,   zeta_m = (2m + 0.4 D) / 1.4 D
//   q'_n . k'_j = sum over pairs of zeta_m^((n-j)/B) times what rotary positions give
// The centre that others subtract from n and j cancels; here it is 0 for the life of a state, and
// max_positions() is where the factors of the first pair would leave float32.
// Sun et al. 2022, arXiv:2212.10554. Golden: additions 5.1.
#pragma once

#include "tessera/nn/position/rope.h"

namespace tessera::nn {

struct XposConfig final : PositionConfig {
  double theta = 10000;
  double scale_base = 512;
  RopeLayout layout = RopeLayout::interleaved;

  static constexpr auto fields() {
    using C = XposConfig;
    return std::tuple{spec::field("theta", &C::theta, "base of the frequencies", {.min = 1e-9}),
                      spec::field("scale_base", &C::scale_base,
                                  "B, the distance over which a pair fades by zeta", {.min = 1}),
                      spec::field("layout", &C::layout, "which channels form a pair")};
  }
  static spec::Info info() {
    return {.summary = "Rotary positions whose scores fade with the distance.",
            .paper = "Sun et al.: A Length-Extrapolatable Transformer, arXiv:2212.10554",
            .year = 2022,
            .forms = {.recurrent = true},
            .place = spec::Place::rotation};
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::rotation, "xpos", scope, kRotationRemedy);
    require_pairs(scope);
    if (!scope.causal)
      fail(ErrorKind::spec, scope.path,
           "xpos fades towards the past and grows towards the future, so it cannot stand in an "
           "encoder; use \"rope\" there");
  }
  /// zeta of the D/2 pairs.
  static std::vector<double> fading(int64_t width) {
    std::vector<double> zeta;
    for (int64_t m = 0; m < width / 2; ++m)
      zeta.push_back((2.0 * static_cast<double>(m) + 0.4 * static_cast<double>(width)) /
                     (1.4 * static_cast<double>(width)));
    return zeta;
  }
  int64_t max_positions() const override {
    // zeta of the first pair is 2/7 for any width; e^80 leaves room for the sums of float32
    constexpr double kLargestExponent = 80, kFastest = 1.252762968495368;  // ln 3.5
    return static_cast<int64_t>(scale_base * kLargestExponent / kFastest);
  }
};

}  // namespace tessera::nn
