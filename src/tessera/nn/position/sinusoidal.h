// Sinusoidal absolute positions, added to the token embeddings; no parameters.
//   angle(p, m) = p * w_m,  m = 0 .. C/2 - 1
//   w_m = 10000^(-2m/C) (paper) or 10000^(-m/(C/2 - 1)) (t2t)
// Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5.
#pragma once

#include <cmath>

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class SinusoidLayout { interleaved, halves };
enum class SinusoidFrequency { paper, t2t };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::SinusoidLayout> {
  static constexpr std::array names{std::pair{nn::SinusoidLayout::interleaved, "interleaved"},
                                    std::pair{nn::SinusoidLayout::halves, "halves"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::SinusoidFrequency> {
  static constexpr std::array names{std::pair{nn::SinusoidFrequency::paper, "paper"},
                                    std::pair{nn::SinusoidFrequency::t2t, "t2t"}};
};

namespace tessera::nn {

struct SinusoidalPositionConfig final : PositionConfig {
  double theta = 10000;
  SinusoidLayout layout = SinusoidLayout::interleaved;
  SinusoidFrequency frequency = SinusoidFrequency::paper;
  int64_t offset = 0;

  static constexpr auto fields() {
    using C = SinusoidalPositionConfig;
    return std::tuple{
        spec::field("theta", &C::theta, "base of the frequencies", {.min = 1}),
        spec::field("layout", &C::layout, "sin and cos alternate, or sines first"),
        spec::field("frequency", &C::frequency, "the paper's exponents or tensor2tensor's"),
        spec::field("offset", &C::offset, "added to the position", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "Fixed sines and cosines of the position, added to the embedding.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true},
            .place = spec::Place::embedding};
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::embedding, "sinusoidal", scope, "put it into \"embed\"");
  }
  /// Writes the `width` values of position p.
  void vector(int64_t p, int64_t width, double* out) const {
    const int64_t pairs = width / 2;
    const int64_t sines = layout == SinusoidLayout::halves && frequency == SinusoidFrequency::paper
                              ? (width + 1) / 2
                              : pairs;
    for (int64_t i = 0; i < width; ++i) out[i] = 0;
    for (int64_t m = 0; m < std::max(sines, pairs); ++m) {
      const double exponent =
          frequency == SinusoidFrequency::paper
              ? 2.0 * static_cast<double>(m) / static_cast<double>(width)
              : static_cast<double>(m) / std::max<double>(1, static_cast<double>(pairs - 1));
      const double angle = static_cast<double>(p + offset) * std::pow(theta, -exponent);
      const int64_t at_sine = layout == SinusoidLayout::halves ? m : 2 * m;
      const int64_t at_cosine = layout == SinusoidLayout::halves ? sines + m : 2 * m + 1;
      out[at_sine] = std::sin(angle);
      if (at_cosine < width && m < pairs) out[at_cosine] = std::cos(angle);
    }
  }
};

}  // namespace tessera::nn
