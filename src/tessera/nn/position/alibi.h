// ALiBi: a penalty that grows linearly with the distance, with one fixed slope per head.
//   b_h(i, j) = -mu_h |i - j|;   mu_h = 2^(-m h / P), h = 1 .. P, P the next power of two, m the
//   largest exponent; with fewer than P heads the even-numbered come first, then the odd ones
// asymmetric: of the slopes for 2H heads the past takes the odd-numbered, the future the others.
// scaled: slopes are rounded to bfloat16 and the bias is multiplied like q . k (Falcon).
// Press, Smith, Lewis 2021, arXiv:2108.12409. Golden: positions 13.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class AlibiSides { symmetric, asymmetric };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::AlibiSides> {
  static constexpr std::array names{std::pair{nn::AlibiSides::symmetric, "symmetric"},
                                    std::pair{nn::AlibiSides::asymmetric, "asymmetric"}};
};

namespace tessera::nn {

struct AlibiConfig final : PositionConfig {
  double bias_max = 8;
  AlibiSides sides = AlibiSides::symmetric;
  bool scaled = false;

  bool takes_scale() const override { return scaled; }
  bool by_distance() const override { return true; }
  static constexpr auto fields() {
    using C = AlibiConfig;
    return std::tuple{
        spec::field("bias_max", &C::bias_max, "the last head's slope is 2^-bias_max", {.min = 0}),
        spec::field("sides", &C::sides, "whether keys before and after the query share slopes"),
        spec::field("scaled", &C::scaled,
                    "slopes in bfloat16, the bias times the factor on the scores (Falcon)")};
  }
  static spec::Info info() {
    return {.summary = "Subtracts the distance times a fixed slope per head from the scores.",
            .paper =
                "Press, Smith, Lewis: Train Short, Test Long: Attention with Linear Biases, "
                "arXiv:2108.12409",
            .year = 2021,
            .forms = {.recurrent = true, .recorded = true},
            .place = spec::Place::score_bias};
  }
  void check(const spec::Scope& scope) const override { require_scores("alibi", scope); }

  struct Slopes {
    std::vector<double> past, future;  // per head
  };
  Slopes slopes(int64_t n_heads) const;
};

}  // namespace tessera::nn
