// Rotary positions: pairs of channels of q and k are rotated by angles proportional to the
// position, so that q_i . k_j depends on i - j only.
//   w_m = theta^(-2m/r),  m = 0 .. r/2 - 1;   (a, b) at p  ->  (a cos pw - b sin pw, a sin pw + b
//   cos pw)
// Su et al. 2021, arXiv:2104.09864. Scalings stand in nn/rope_scaling/.
#pragma once

#include "tessera/nn/position/position_config.h"
#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::nn {

enum class RopeLayout {
  half,         // pair m is channels (m, m + r/2): NeoX and Hugging Face checkpoints
  interleaved,  // pair m is channels (2m, 2m + 1): GPT-J, Cohere, Meta's and GGUF's llama
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RopeLayout> {
  static constexpr std::array names{std::pair{nn::RopeLayout::half, "half"},
                                    std::pair{nn::RopeLayout::interleaved, "interleaved"}};
};

namespace tessera::nn {

/// The remedy for a rotation in a wrong place.
inline constexpr const char* kRotationRemedy =
    "put it into \"position\" of a mixer that rotates queries and keys, such as \"attention\"";

struct RopeConfig final : PositionConfig {
  double theta = 10000;
  RopeLayout layout = RopeLayout::half;
  int64_t rotary_dim = 0;
  spec::Part<spec::Slot::rope_scaling> scaling;

  static constexpr auto fields() {
    using C = RopeConfig;
    return std::tuple{
        spec::field("theta", &C::theta, "base of the frequencies", {.min = 1e-9}),
        spec::field("layout", &C::layout, "which channels form a pair"),
        spec::field("rotary_dim", &C::rotary_dim,
                    "channels that rotate, the first of each head; 0 = all", {.min = 0}),
        spec::field("scaling", &C::scaling,
                    "how the frequencies are stretched beyond the trained length")};
  }
  static spec::Info info() {
    return {.summary = "Rotates queries and keys by angles that grow with the position.",
            .paper =
                "Su et al.: RoFormer: Enhanced Transformer with Rotary Position Embedding, "
                "arXiv:2104.09864",
            .year = 2021,
            .forms = {.recurrent = true, .recorded = true},
            .place = spec::Place::rotation};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = rotary_dim > 0 ? rotary_dim : scope.turned();
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (rotary_dim == 0) rotary_dim = scope.turned();
  }
  void check(const spec::Scope& scope) const override {
    require_place(spec::Place::rotation, "rope", scope, kRotationRemedy);
    if (rotary_dim % 2 != 0 || rotary_dim > scope.turned())
      fail(ErrorKind::spec, scope.path,
           "rotary_dim = {}; expected an even number of at most head_dim = {}", rotary_dim,
           scope.turned());
  }
  int64_t angles_until(int64_t length) const override {
    return scaling ? scaling.as<RopeScalingConfig>().angles_until(length) : kAnglesStay;
  }

  /// Angular frequencies of the r/2 pairs and the factor on cos and sin, for a sequence of `length`
  /// tokens.
  RopeFrequencies frequencies(int64_t length) const;
};

}  // namespace tessera::nn
