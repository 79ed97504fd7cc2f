// Gated linear attention: a state that forgets per key channel, as the token decides.
//   ln a_t = logsigmoid(W_2 W_1 x_t + b) / temper;  S_t = diag(a_t) S_{t-1} + k_t v_t^T
//   o_t = K^{-1/2} S_t^T q_t;  out = W_o( RMSNorm_head(o) * silu(W_g x) )
// Yang, Wang et al. 2023, arXiv:2312.06635. Forms: chunked (parallel when chunk >= T), recurrent.
#pragma once

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

struct GlaConfig final : RecurrentConfig {
  int64_t decay_rank = 16;
  double temper = 16;
  double norm_eps = 1e-5;

  static constexpr auto fields() {
    using C = GlaConfig;
    using spec::field;
    return std::tuple_cat(
        head_fields("K, key width of a head; 0 = d_model / (2 * n_heads)",
                    "V, value width of a head; 0 = d_model / n_heads"),
        std::tuple{field("decay_rank", &C::decay_rank, "width between the decay's two projections",
                         {.min = 1}),
                   field("temper", &C::temper, "divides the log decay", {.min = 1e-6}),
                   field("norm_eps", &C::norm_eps, "added to the mean square of a head's output",
                         {.min = 0})});
  }
  static spec::Info info() {
    return {.summary = "Linear attention whose state decays per key channel, decided by the token.",
            .paper =
                "Yang, Wang, Shen, Panda, Kim: Gated Linear Attention Transformers with "
                "Hardware-Efficient Training, arXiv:2312.06635",
            .year = 2023,
            .forms = {.parallel = true, .chunked = true, .recurrent = true, .recorded = true}};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override { require_causal(scope, "gla"); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
