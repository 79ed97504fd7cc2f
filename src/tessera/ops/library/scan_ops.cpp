// libtessera_ops.so: the CPU kernels as ordinary torch ops for Python.
//
//   torch.ops.load_library("libtessera_ops.so")
//   y = torch.ops.tessera.selective_scan(x, dt, dt_bias, a, b, c, d, 64)
//
// Every op takes tensors and one integer, and gives one tensor shaped as one of them. It has a CPU
// kernel, a Meta kernel (shapes), and an Autograd kernel whose gradient is an op of its own,
// <name>_backward: it computes the forward pass again and differentiates it, so that between the
// two passes only the inputs are kept.
#include "tessera/ops/flash_attention.h"
#include "tessera/ops/library/registered.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/rg_lru.h"
#include "tessera/ops/selective_scan.h"
#include "tessera/ops/short_conv.h"
#include "tessera/ops/ssm.h"
#include "tessera/ops/wkv4.h"

namespace tessera::ops::library {
namespace {

/// [B, T, ...] as the rows of one tensor [B T, ...], and back.
Tensor rows(const Tensor& x) {
  return x.flatten(0, 1);
}
Lengths lengths_of(const Tensor& x_BT) {
  return Lengths(static_cast<size_t>(x_BT.size(0)), x_BT.size(1));
}

struct SelectiveScanOp {
  static constexpr const char* name = "selective_scan";
  static constexpr const char* arguments =
      "Tensor x, Tensor dt, Tensor dt_bias, Tensor a, Tensor b, Tensor c, Tensor d, int chunk";
  static constexpr size_t count = 7, like = 0;
  /// x and dt [B, T, E], dt_bias and d [E], a [E, N] and not positive, b and c [B, T, N].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const SelectiveScan in{rows(t[0]), rows(t[1]), t[2], t[3].t().contiguous(),
                           rows(t[4]), rows(t[5]), t[6]};
    return selective_scan(in, lengths_of(t[0]), chunk).view_as(t[0]);
  }
};

struct SsdOp {
  static constexpr const char* name = "ssd";
  static constexpr const char* arguments =
      "Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor d, int chunk";
  static constexpr size_t count = 6, like = 0;
  /// x [B, T, H, P], dt [B, T, H] after softplus, a and d [H], b and c [B, T, G, N].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return ssd_y({t[0], t[1], t[2], t[3], t[4], t[5]}, chunk);
  }
};

struct Wkv4Op {
  static constexpr const char* name = "wkv4";
  static constexpr const char* arguments = "Tensor k, Tensor v, Tensor w, Tensor u, int chunk";
  static constexpr size_t count = 4, like = 1;
  /// k and v [B, T, C], w (negative) and u [C]; chunk is not used.
  static Tensor compute(const Tensors& t, int64_t) {
    return wkv4({rows(t[0]), rows(t[1]), t[2], t[3]}, lengths_of(t[0])).view_as(t[1]);
  }
};

struct RgLruOp {
  static constexpr const char* name = "rg_lru";
  static constexpr const char* arguments =
      "Tensor x, Tensor input_gate, Tensor recurrent_gate, Tensor lambda_, int chunk";
  static constexpr size_t count = 4, like = 0;
  /// x and the gates before their sigmoid [B, T, W], lambda_ [W].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const Tensor scale = 8 * ops::softplus(t[3].to(wide(t[0])));
    return rg_lru({rows(t[0]), rows(t[1]), rows(t[2]), scale}, lengths_of(t[0]), chunk)
        .view_as(t[0]);
  }
};

struct ShortConvOp {
  static constexpr const char* name = "short_conv_silu";
  static constexpr const char* arguments = "Tensor x, Tensor weight, Tensor bias, int chunk";
  static constexpr size_t count = 3, like = 0;
  /// x [B, T, C], weight [C, taps], bias [C]; chunk is not used.
  static Tensor compute(const Tensors& t, int64_t) {
    return short_conv(rows(t[0]), t[1], t[2], kernels::Activation::silu, lengths_of(t[0]))
        .view_as(t[0]);
  }
};

struct CausalAttentionOp {
  static constexpr const char* name = "causal_attention";
  static constexpr const char* arguments = "Tensor q, Tensor k, Tensor v, int window";
  static constexpr size_t count = 3, like = 0;
  /// q [B, T, H, D], k and v [B, T, G, D], G divides H; keys in the window, 0 = all.
  static Tensor compute(const Tensors& t, int64_t window) {
    const double scale = 1 / std::sqrt(static_cast<double>(t[0].size(3)));
    return attention_equal(t[0], t[1], t[2], {.scale = scale, .window = window});
  }
};

using Here = All<SelectiveScanOp, SsdOp, Wkv4Op, RgLruOp, ShortConvOp, CausalAttentionOp>;

}  // namespace

TESSERA_TORCH_OPS(Here)

}  // namespace tessera::ops::library
