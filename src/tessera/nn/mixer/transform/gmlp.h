// gMLP's spatial gating unit with its projections: half of the channels are mixed over positions by
// one matrix and gate the other half.
//   u, v = gelu(W_in x);  v = LayerNorm(v);  v_t = sum_s W_s[t, s] v_s + b_t;  out = W_out (u * v)
// Liu, Dai, So, Le 2021, arXiv:2105.08050. In a decoder W_s is lower triangular. At first W_s is
// nearly 0 and b is 1: the layer starts as a feed-forward one.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct GmlpConfig final : spec::Config {
  int64_t d_hidden = 0;
  int64_t max_length = 0;
  spec::Part<spec::Slot::norm> norm;

  static constexpr auto fields() {
    using C = GmlpConfig;
    using spec::field;
    return std::tuple{field("d_hidden", &C::d_hidden, "channels of u and v together; even",
                            {.min = 2, .required = true, .width = true}),
                      field("max_length", &C::max_length, "longest document, which W_s is made for",
                            {.min = 1, .required = true}),
                      field("norm", &C::norm, "norm of v", {.part = "layer_norm"})};
  }
  static spec::Json example(const spec::Scope& scope, int64_t length) {
    return {{"d_hidden", 2 * scope.d_model}, {"max_length", length}};
  }
  static spec::Info info() {
    return {.summary =
                "One matrix over positions mixes half of the channels, which gate the "
                "others.",
            .paper = "Liu, Dai, So, Le: Pay Attention to MLPs, arXiv:2105.08050",
            .year = 2021,
            .forms = {.parallel = true, .recurrent = true},
            .time = spec::Growth::quadratic,
            .memory = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = d_hidden / 2;
    return scope;
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return max_length; }
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
