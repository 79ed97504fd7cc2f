// Forgetting attention (FoX): softmax attention whose scores decay with the forget gates of the
// tokens between key and query, one gate of each head.
//   f_t = log sigmoid(W_f x_t + b_f),  c_t = f_1 + ... + f_t,  each query head its own
//   s_ij = head_dim^-1/2 q_i . k_j + c_i - c_j;  p_i = softmax over j <= i;  o_i = sum_j p_ij v_j
//   o_i <- o_i * sigmoid(W_g x_i) with a gate
// The state holds f of every token, of which c is summed in double. Lin, Nikishin, He, Courville
// 2025, arXiv:2503.02130, sec. 3 (the released layers of flash-linear-attention).
#pragma once

#include "tessera/nn/mixer/attention/attention.h"

namespace tessera::nn {

struct ForgettingAttentionConfig final : spec::Config {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  AttentionBias bias;
  spec::Part<spec::Slot::norm> qk_norm;
  QkNormOver qk_norm_over = QkNormOver::head;
  bool gate = false;
  spec::Part<spec::Slot::position> position;
  double dropout = 0;

  static constexpr auto fields() {
    using C = ForgettingAttentionConfig;
    using spec::field;
    return std::tuple{
        field("n_heads", &C::n_heads, "query heads", {.min = 1, .required = true}),
        field("n_kv_heads", &C::n_kv_heads,
              "key/value heads, divides n_heads; 0 = n_heads (MHA), 1 = MQA", {.min = 0}),
        field("head_dim", &C::head_dim, "width of one head; 0 = d_model / n_heads", {.min = 0}),
        field("bias", &C::bias, "which projections have a bias"),
        field("qk_norm", &C::qk_norm, "norm of queries and keys"),
        field("qk_norm_over", &C::qk_norm_over, "what the qk_norm's statistics cover"),
        field("gate", &C::gate, "whether a sigmoid of a projection multiplies the heads' outputs"),
        field("position", &C::position, "a rotation of queries and keys", {.part = "none"}),
        field("dropout", &C::dropout, "probability on the attention weights, in training",
              {.min = 0})};
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
  int64_t width_of_head(const spec::Scope& scope) const {
    return head_dim > 0 ? head_dim : n_heads > 0 ? scope.d_model / n_heads : 0;
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = width_of_head(scope);
    scope.n_heads = n_heads;
    if (name == "position") scope.places = {.rotation = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
