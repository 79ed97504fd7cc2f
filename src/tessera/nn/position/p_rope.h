// p-RoPE: rotary positions that keep only the fastest pairs; the others stand still and carry
// content regardless of position.
//   w_m = theta^(-2m/D) for m < floor(p D / 2), else 0
// p = 1 is "rope", p = 0 is "none". Partial rotary (rope's rotary_dim) is another thing: its few
// pairs span all frequencies.
// Barbero et al. 2024, arXiv:2410.06205. Positions 11.
#pragma once

#include "tessera/nn/position/rope.h"

namespace tessera::nn {

struct PRopeConfig final : PositionConfig {
  double theta = 10000;
  RopeLayout layout = RopeLayout::half;
  double fraction = 0.75;

  static constexpr auto fields() {
    using C = PRopeConfig;
    return std::tuple{
        spec::field("theta", &C::theta, "base of the frequencies", {.min = 1e-9}),
        spec::field("layout", &C::layout, "which channels form a pair"),
        spec::field("fraction", &C::fraction, "p, the part of the pairs that turns, 0 to 1",
                    {.min = 0, .max = 1})};
  }
  static spec::Info info() {
    return {.summary = "Rotary positions without the slowest frequencies.",
            .paper =
                "Barbero et al.: Round and Round We Go! What makes Rotary Positional Encodings "
                "useful?, arXiv:2410.06205",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true},
            .place = spec::Place::rotation};
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::rotation, "p_rope", scope, kRotationRemedy);
    require_pairs(scope);
  }
  /// Angular frequencies of the D/2 pairs.
  std::vector<double> frequencies(int64_t width) const {
    std::vector<double> omega = plain_frequencies(theta, width);
    // 0.29 * 100 is a little less than 29
    const auto turning = static_cast<size_t>(fraction * static_cast<double>(omega.size()) + 1e-9);
    std::fill(omega.begin() + static_cast<std::ptrdiff_t>(turning), omega.end(), 0.0);
    return omega;
  }
};

}  // namespace tessera::nn
