// Forgetting attention (FoX): softmax attention whose scores decay with the forget gates of the
// tokens between key and query, one gate of each head.
//   f_t = log sigmoid(W_f x_t + b_f),  c_t = f_1 + ... + f_t,  each query head its own
//   s_ij = head_dim^-1/2 q_i . k_j + c_i - c_j;  p_i = softmax over j <= i;  o_i = sum_j p_ij v_j
//   o_i <- o_i * sigmoid(W_g x_i) with a gate
// The state holds f of every token, of which c is summed in double. Lin, Nikishin, He, Courville
// 2025, arXiv:2503.02130, sec. 3 (the released layers of flash-linear-attention).
#pragma once

#include "tessera/nn/mixer/attention/attention_bias.h"
#include "tessera/nn/mixer/attention/output_gate.h"
#include "tessera/nn/mixer/attention/qk_norm.h"
#include "tessera/nn/mixer/heads.h"

namespace tessera::nn {

struct ForgettingAttentionConfig final : spec::Config, HeadsConfig, QkNormConfig {
  AttentionBias bias;
  bool gate = false;
  spec::Part<spec::Slot::position> position;
  double dropout = 0;

  static constexpr auto fields() {
    using C = ForgettingAttentionConfig;
    using spec::field;
    return std::tuple_cat(
        HeadsConfig::fields(), std::tuple{field("bias", &C::bias, "which projections have a bias")},
        QkNormConfig::fields(),
        std::tuple{
            field("gate", &C::gate,
                  "whether a sigmoid of a projection multiplies the heads' outputs"),
            field("position", &C::position, "a rotation of queries and keys", {.part = "none"}),
            field("dropout", &C::dropout, "probability on the attention weights, in training",
                  {.min = 0, .below = 1})});
  }
  static spec::Info info() {
    return {.summary = "Softmax attention with a forget gate of each head (FoX).",
            .paper =
                "Lin, Nikishin, He, Courville: Forgetting Transformer: Softmax Attention with a "
                "Forget Gate, arXiv:2503.02130",
            .year = 2025,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope.d_model);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true};
    return scope;
  }
  OutputGateConfig output_gate() const {
    return {.gate = gate ? OutputGate::elementwise : OutputGate::none};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
