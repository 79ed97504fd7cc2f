// The linear recurrences of libtessera_ops.so.
#include <cmath>

#include "tessera/ops/library/registered.h"
#include "tessera/ops/linear/linear_recurrence.h"
#include "tessera/ops/linear/mlstm.h"

namespace tessera::ops::library {
namespace {

/// A column whose part of the result is the normaliser.
Tensor with_ones(const Tensor& v_BTHV) {
  return at::cat({v_BTHV, at::ones_like(v_BTHV.slice(3, 0, 1))}, 3);
}

constexpr Integer kChunk{"chunk", 1};

Tensor linear_attention_op(const Tensors& t, int64_t chunk) {
  return linear_recurrence_y({t[0], t[1], t[2], t[3]}, chunk);
}

/// Divided by what the same weights add up to, plus 1e-6: q . sum of the decayed keys.
Tensor normalised_linear_attention_op(const Tensors& t, int64_t chunk) {
  const Tensor y = linear_recurrence_y({t[0], t[1], with_ones(t[2]), t[3]}, chunk);
  return y.slice(3, 0, -1) / (y.slice(3, -1) + 1e-6);
}

/// Keys are unit vectors.
Tensor delta_rule_op(const Tensors& t, int64_t chunk) {
  return linear_recurrence_y({t[0], t[1], t[2], t[3], t[4]}, chunk);
}

Tensor rwkv6_op(const Tensors& t, int64_t chunk) {
  LinearRecurrence in{t[0], t[1], t[2], t[3]};
  in.u_HK = t[4];
  return linear_recurrence_y(in, chunk);
}

/// S <- exp(log_decay) o S + b (S^T a)^T + k v^T
Tensor rwkv7_op(const Tensors& t, int64_t chunk) {
  LinearRecurrence in{t[0], t[1], t[2], t[3]};
  in.a_BTHK = t[4], in.b_BTHK = t[5];
  return linear_recurrence_y(in, chunk);
}

/// h of an mLSTM, with the gates before their activations: e^i, and the sigmoid of f. Keys are
/// divided by the root of K; the denominator is max(|n . q|, e^{-m}) + 1e-6.
Tensor mlstm_op(const Tensors& t, int64_t chunk) {
  const auto type = wide(t[0]);
  const MlstmGates gates = mlstm_gates(ops::log_sigmoid(t[4].to(type)), t[3].to(type));
  const Tensor k = t[1].to(type) * gates.write_BTH.unsqueeze(-1) *
                   (1 / std::sqrt(static_cast<double>(t[1].size(3))));
  const Tensor y =
      linear_recurrence_y({t[0], k, with_ones(t[2].to(type)), gates.log_decay_BTH}, chunk);
  return mlstm_read(y, gates.m_BTH, 1e-6).to(t[2].scalar_type());
}

}  // namespace

const std::vector<Op>& recurrence_ops() {
  static const std::vector<Op> ops{
      {"linear_attention",
       {{"q", "B,T,H,K"},
        {"k", "B,T,H,K"},
        {"v", "B,T,H,V"},
        {"log_decay", "H or B,T,H or B,T,H,K"}},
       kChunk,
       2,
       linear_attention_op},
      {"normalised_linear_attention",
       {{"q", "B,T,H,K"},
        {"k", "B,T,H,K"},
        {"v", "B,T,H,V"},
        {"log_decay", "H or B,T,H or B,T,H,K"}},
       kChunk,
       2,
       normalised_linear_attention_op},
      {"delta_rule",
       {{"q", "B,T,H,K"},
        {"k", "B,T,H,K"},
        {"v", "B,T,H,V"},
        {"log_decay", "H or B,T,H or B,T,H,K"},
        {"beta", "B,T,H"}},
       kChunk,
       2,
       delta_rule_op},
      {"rwkv6",
       {{"r", "B,T,H,K"},
        {"k", "B,T,H,K"},
        {"v", "B,T,H,V"},
        {"log_decay", "B,T,H,K"},
        {"bonus", "H,K"}},
       kChunk,
       2,
       rwkv6_op},
      {"rwkv7",
       {{"r", "B,T,H,K"},
        {"k", "B,T,H,K"},
        {"v", "B,T,H,V"},
        {"log_decay", "B,T,H,K"},
        {"a", "B,T,H,K"},
        {"b", "B,T,H,K"}},
       kChunk,
       2,
       rwkv7_op},
      {"mlstm",
       {{"q", "B,T,H,K"}, {"k", "B,T,H,K"}, {"v", "B,T,H,V"}, {"i", "B,T,H"}, {"f", "B,T,H"}},
       kChunk,
       2,
       mlstm_op}};
  return ops;
}

}  // namespace tessera::ops::library
