// RWKV's channel mixing: a squared-ReLU feed-forward layer on inputs mixed with the token before.
// It has a state, hence the mixer slot; it is a layer's second branch.
//   rwkv4, rwkv5:  x_j = mix_j x_t + (1 - mix_j) x_{t-1};   rwkv6, rwkv7:  x_j = x_t + (x_{t-1} -
//   x_t) mix_j out = W_v relu(W_k x_k)^2, times sigmoid(W_r x_r) but in rwkv7
// Peng et al. 2023, arXiv:2305.13048; 2024, arXiv:2404.05892; 2025, arXiv:2503.14456.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class RwkvVersion { rwkv4, rwkv5, rwkv6, rwkv7 };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RwkvVersion> {
  using V = nn::RwkvVersion;
  static constexpr std::array names{std::pair{V::rwkv4, "rwkv4"}, std::pair{V::rwkv5, "rwkv5"},
                                    std::pair{V::rwkv6, "rwkv6"}, std::pair{V::rwkv7, "rwkv7"}};
};

namespace tessera::nn {

struct RwkvChannelMixConfig final : spec::Config {
  RwkvVersion version = RwkvVersion::rwkv7;
  int64_t d_hidden = 0;

  static constexpr auto fields() {
    using C = RwkvChannelMixConfig;
    using spec::field;
    return std::tuple{
        field("version", &C::version, "how the token before enters, and whether there is a gate"),
        field("d_hidden", &C::d_hidden,
              "F; 0 = 4 * d_model, in rwkv5 and rwkv6 3.5 * d_model in whole 32s",
              {.min = 0, .width = true})};
  }
  static spec::Info info() {
    return {.summary = "RWKV's feed-forward layer, which mixes each token with the one before.",
            .paper =
                "Peng et al.: RWKV: Reinventing RNNs for the Transformer Era, arXiv:2305.13048; "
                "arXiv:2404.05892; arXiv:2503.14456",
            .year = 2023,
            .forms = {.parallel = true, .recurrent = true, .recorded = true}};
  }
  bool gated() const { return version != RwkvVersion::rwkv7; }
  /// Whether mix weighs the present token (else the step to the one before).
  bool weighs_present() const { return version <= RwkvVersion::rwkv5; }

  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
