// Frames of sound or of any series with channels: convolutions over time make them tokens.
//   x <- act(conv(x)), each of kernel k (odd) with k // 2 zeros on either side and a step of its
//   own;  x = dropout(N(x + P))
// Steps of 1 and 2 with kernel 3 are Whisper's stem: Radford et al. 2022, arXiv:2212.04356, sec.
// 2.2. Golden: tools/golden/features.py; spectrograms: infer/encoders/log_mel.h.
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/embed/feature_embed.h"

namespace tessera::nn {

struct FramesConfig final : FeatureEmbedConfig {
  int64_t channels = 80;
  int64_t kernel = 3;
  std::vector<int64_t> strides{1, 2};
  Activation act = Activation::gelu;
  bool bias = true;

  static constexpr auto fields() {
    using C = FramesConfig;
    using spec::field;
    return std::tuple_cat(
        std::tuple{field("channels", &C::channels, "numbers of a frame", {.min = 1}),
                   field("kernel", &C::kernel, "frames that a convolution reads, odd", {.min = 1}),
                   field("strides", &C::strides, "the step of each convolution", {.min = 1}),
                   field("act", &C::act, "activation after each convolution"),
                   field("bias", &C::bias, "whether they have a bias")},
        common_fields<C>());
  }
  static spec::Info info() {
    return {.summary = "Frames of sound, made tokens by convolutions over time.",
            .paper =
                "Radford et al.: Robust Speech Recognition via Large-Scale Weak Supervision "
                "(Whisper), arXiv:2212.04356",
            .year = 2022,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;

  std::string input() const override { return "input_features"; }
  std::string shape_text() const override { return fmt::format("[{}, frames]", channels); }
  int64_t tokens(const std::vector<int64_t>& shape) const override;
  std::vector<int64_t> shape_of(int64_t n) const override;
};

}  // namespace tessera::nn
