// HGRN2: linear attention whose key is one minus its forget gate.
//   g_t = lb + (1 - lb) sigmoid(W_f x);  S_t = diag(g_t) S_{t-1} + (1 - g_t) v_t^T,  v = W_v x
//   o_t = S_t^T silu(W_q x);  out = W_o RMSNorm(o), the norm over all heads together
// The lower bound lb is that of lower_bounds.h. Qin et al. 2024, arXiv:2404.07904. Forms: chunked
// (parallel when chunk >= T), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/lower_bounds.h"
#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct Hgrn2Config final : RecurrentConfig {
  LowerBound lower_bound = LowerBound::learned;
  static constexpr const char* kShared = "hgrn2";  // under which layers share the table
  bool scale = false;
  int64_t d_conv = 0;
  double norm_eps = 1e-5;

  static constexpr auto fields() {
    using C = Hgrn2Config;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / n_heads",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{
            field("lower_bound", &C::lower_bound, "least value of the forget gate"),
            field("scale", &C::scale, "multiply the output by K^-1/2"),
            field("d_conv", &C::d_conv, "taps of a short convolution of q, f, v; 0 = none",
                  {.min = 0}),
            field("norm_eps", &C::norm_eps, "added to the mean square of the output", {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "Gated linear attention whose key is one minus its forget gate.",
            .paper = "Qin et al.: HGRN2: Gated Linear RNNs with State Expansion, arXiv:2404.07904",
            .year = 2024,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override {
    if (key_dim == 0) key_dim = head_width(scope);
    if (value_dim == 0) value_dim = head_width(scope);
  }
  void check(const spec::Scope& scope) const override { require_causal(scope, "hgrn2"); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
