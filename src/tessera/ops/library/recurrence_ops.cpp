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

struct LinearAttentionOp {
  static constexpr const char* name = "linear_attention";
  static constexpr std::array arguments{Argument{"q", "B,T,H,K"}, Argument{"k", "B,T,H,K"},
                                        Argument{"v", "B,T,H,V"},
                                        Argument{"log_decay", "H or B,T,H or B,T,H,K"}};
  static constexpr Integer integer = kChunk;
  static constexpr size_t like = 2;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return linear_recurrence_y({t[0], t[1], t[2], t[3]}, chunk);
  }
};

/// Divided by what the same weights add up to, plus 1e-6: q . sum of the decayed keys.
struct NormalisedLinearAttentionOp {
  static constexpr const char* name = "normalised_linear_attention";
  static constexpr std::array arguments = LinearAttentionOp::arguments;
  static constexpr Integer integer = kChunk;
  static constexpr size_t like = 2;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const Tensor y = linear_recurrence_y({t[0], t[1], with_ones(t[2]), t[3]}, chunk);
    return y.slice(3, 0, -1) / (y.slice(3, -1) + 1e-6);
  }
};

struct DeltaRuleOp {
  static constexpr const char* name = "delta_rule";
  static constexpr std::array arguments{
      Argument{"q", "B,T,H,K"}, Argument{"k", "B,T,H,K"}, Argument{"v", "B,T,H,V"},
      Argument{"log_decay", "H or B,T,H or B,T,H,K"}, Argument{"beta", "B,T,H"}};
  static constexpr Integer integer = kChunk;
  static constexpr size_t like = 2;
  /// Keys are unit vectors.
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return linear_recurrence_y({t[0], t[1], t[2], t[3], t[4]}, chunk);
  }
};

struct Rwkv6Op {
  static constexpr const char* name = "rwkv6";
  static constexpr std::array arguments{Argument{"r", "B,T,H,K"}, Argument{"k", "B,T,H,K"},
                                        Argument{"v", "B,T,H,V"}, Argument{"log_decay", "B,T,H,K"},
                                        Argument{"bonus", "H,K"}};
  static constexpr Integer integer = kChunk;
  static constexpr size_t like = 2;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    LinearRecurrence in{t[0], t[1], t[2], t[3]};
    in.u_HK = t[4];
    return linear_recurrence_y(in, chunk);
  }
};

/// S <- exp(log_decay) o S + b (S^T a)^T + k v^T
struct Rwkv7Op {
  static constexpr const char* name = "rwkv7";
  static constexpr std::array arguments{Argument{"r", "B,T,H,K"}, Argument{"k", "B,T,H,K"},
                                        Argument{"v", "B,T,H,V"}, Argument{"log_decay", "B,T,H,K"},
                                        Argument{"a", "B,T,H,K"}, Argument{"b", "B,T,H,K"}};
  static constexpr Integer integer = kChunk;
  static constexpr size_t like = 2;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    LinearRecurrence in{t[0], t[1], t[2], t[3]};
    in.a_BTHK = t[4], in.b_BTHK = t[5];
    return linear_recurrence_y(in, chunk);
  }
};

/// h of an mLSTM, with the gates before their activations: e^i, and the sigmoid of f. Keys are
/// divided by the root of K; the denominator is max(|n . q|, e^{-m}) + 1e-6.
struct MlstmOp {
  static constexpr const char* name = "mlstm";
  static constexpr std::array arguments{Argument{"q", "B,T,H,K"}, Argument{"k", "B,T,H,K"},
                                        Argument{"v", "B,T,H,V"}, Argument{"i", "B,T,H"},
                                        Argument{"f", "B,T,H"}};
  static constexpr Integer integer = kChunk;
  static constexpr size_t like = 2;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const auto type = wide(t[0]);
    const MlstmGates gates = mlstm_gates(ops::log_sigmoid(t[4].to(type)), t[3].to(type));
    const Tensor k = t[1].to(type) * gates.write_BTH.unsqueeze(-1) *
                     (1 / std::sqrt(static_cast<double>(t[1].size(3))));
    const Tensor y =
        linear_recurrence_y({t[0], k, with_ones(t[2].to(type)), gates.log_decay_BTH}, chunk);
    return mlstm_read(y, gates.m_BTH, 1e-6).to(t[2].scalar_type());
  }
};

using Here =
    All<LinearAttentionOp, NormalisedLinearAttentionOp, DeltaRuleOp, Rwkv6Op, Rwkv7Op, MlstmOp>;

}  // namespace

TESSERA_TORCH_OPS(Here)

}  // namespace tessera::ops::library
