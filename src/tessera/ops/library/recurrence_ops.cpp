// The linear recurrences of libtessera_ops.so.
#include "tessera/ops/library/registered.h"
#include "tessera/ops/linear_recurrence.h"

namespace tessera::ops::library {
namespace {

struct LinearAttentionOp {
  static constexpr const char* name = "linear_attention";
  static constexpr const char* arguments =
      "Tensor q, Tensor k, Tensor v, Tensor log_decay, int chunk";
  static constexpr size_t count = 4, like = 2;
  /// q and k [B, T, H, K], v [B, T, H, V], log_decay [H], [B, T, H] or [B, T, H, K].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return linear_recurrence_y({t[0], t[1], t[2], t[3]}, chunk);
  }
};

struct DeltaRuleOp {
  static constexpr const char* name = "delta_rule";
  static constexpr const char* arguments =
      "Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor beta, int chunk";
  static constexpr size_t count = 5, like = 2;
  /// As linear_attention, with unit keys and beta [B, T, H].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return linear_recurrence_y({t[0], t[1], t[2], t[3], t[4]}, chunk);
  }
};

struct Rwkv6Op {
  static constexpr const char* name = "rwkv6";
  static constexpr const char* arguments =
      "Tensor r, Tensor k, Tensor v, Tensor log_decay, Tensor bonus, int chunk";
  static constexpr size_t count = 5, like = 2;
  /// r, k and log_decay [B, T, H, K], v [B, T, H, V], bonus [H, K].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    LinearRecurrence in{t[0], t[1], t[2], t[3]};
    in.u_HK = t[4];
    return linear_recurrence_y(in, chunk);
  }
};

struct Rwkv7Op {
  static constexpr const char* name = "rwkv7";
  static constexpr const char* arguments =
      "Tensor r, Tensor k, Tensor v, Tensor log_decay, Tensor a, Tensor b, int chunk";
  static constexpr size_t count = 6, like = 2;
  /// S <- exp(log_decay) o S + b (S^T a)^T + k v^T; all [B, T, H, K] but v [B, T, H, V].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    LinearRecurrence in{t[0], t[1], t[2], t[3]};
    in.a_BTHK = t[4], in.b_BTHK = t[5];
    return linear_recurrence_y(in, chunk);
  }
};

using Here = All<LinearAttentionOp, DeltaRuleOp, Rwkv6Op, Rwkv7Op>;

}  // namespace

TESSERA_TORCH_OPS(Here)

}  // namespace tessera::ops::library
