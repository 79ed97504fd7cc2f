// A transformer block in a narrower space, as one branch of a wide stream: an attention and
// feed-forward layers with norms after them, between two projections.
//   a = N(W_in x + b),  s = N(W_qk x + b)                                  [N, width]
//   h = N(a + W_o attention(q(s), k(s), v(x)));   h = N(h + ffn_i(h)), i = 1 .. n_ffns
//   y = W_out h + b                                                        [N, d_model]
// With attention `bottleneck` queries, keys and values read a, and there is no s. Sun et al. 2020,
// arXiv:2004.02984 (MobileBERT), sec. 3.1 to 3.3; the branch's residual, N(x + y), is post_norm.
//
// Encoders only: every query sees the whole document.
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"

namespace tessera::nn {

enum class BottleneckAttention {
  stream,      // queries and keys of a second bottleneck, values of the stream
  bottleneck,  // all of the first one
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::BottleneckAttention> {
  using B = nn::BottleneckAttention;
  static constexpr std::array names{std::pair{B::stream, "stream"},
                                    std::pair{B::bottleneck, "bottleneck"}};
};

namespace tessera::nn {

struct BottleneckConfig final : spec::Config {
  int64_t width = 0;
  int64_t n_heads = 0;
  BottleneckAttention attention = BottleneckAttention::stream;
  bool project_bias = false;
  AttentionBias bias;
  int64_t n_ffns = 4;
  spec::Part<spec::Slot::ffn> ffn;
  spec::Part<spec::Slot::norm> norm;
  double dropout = 0;

  static constexpr auto fields() {
    using C = BottleneckConfig;
    using spec::field;
    return std::tuple{
        field("width", &C::width, "channels of the block", {.min = 1, .required = true}),
        field("n_heads", &C::n_heads, "heads; divides width", {.min = 1, .required = true}),
        field("attention", &C::attention, "what queries, keys and values read"),
        field("project_bias", &C::project_bias,
              "whether the projections into the block and out of it have a bias"),
        field("bias", &C::bias, "which projections of the attention have one"),
        field("n_ffns", &C::n_ffns, "feed-forward layers in a row", {.min = 1}),
        field("ffn", &C::ffn, "each of them, of `width` channels", {.required = true}),
        field("norm", &C::norm, "norm after each projection in and each sum", {.part = "affine"}),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0, .below = 1})};
  }
  static spec::Json example(const spec::Scope& scope, int64_t) {
    const int64_t width = scope.d_model / 4;
    return {{"width", width}, {"n_heads", 4}, {"ffn", {{"type", "mlp"}, {"d_hidden", 4 * width}}}};
  }
  static spec::Info info() {
    return {.summary =
                "Attention and stacked feed-forward layers in a narrower space, between two "
                "projections.",
            .paper =
                "Sun et al.: MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited "
                "Devices, arXiv:2004.02984",
            .year = 2020,
            .causality = spec::Causality::none,
            .forms = {},
            .time = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.d_model = scope.width = width;
    scope.d_in = 0;
    return scope;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
