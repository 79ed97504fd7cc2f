// libtessera_ops.so: the CPU kernels as ordinary torch ops for Python.
//
//   torch.ops.load_library("libtessera_ops.so")
//   y = torch.ops.tessera.selective_scan(x, dt, dt_bias, a, b, c, d, 64)
//
// Every op takes tensors and one integer, and gives one tensor shaped as one of them. It has a CPU
// kernel, a Meta kernel (shapes), and an Autograd kernel whose gradient is an op of its own,
// <name>_backward: it computes the forward pass again and differentiates it, so that between the
// two passes only the inputs are kept. Gradients have none themselves.
#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/library/registered.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/rg_lru.h"
#include "tessera/ops/scan/selective_scan.h"
#include "tessera/ops/convolution/short_conv.h"
#include "tessera/ops/scan/mamba2.h"
#include "tessera/ops/scan/rwkv4.h"

namespace tessera::ops::library {
namespace {

/// [B, T, ...] as the rows of one tensor [B T, ...], and back.
Tensor rows(const Tensor& x) {
  return x.flatten(0, 1);
}
Lengths lengths_of(const Tensor& x_BT) {
  return Lengths(static_cast<size_t>(x_BT.size(0)), x_BT.size(1));
}

/// a is not positive.
struct SelectiveScanOp {
  static constexpr const char* name = "selective_scan";
  static constexpr std::array arguments{Argument{"x", "B,T,E"},   Argument{"dt", "B,T,E"},
                                        Argument{"dt_bias", "E"}, Argument{"a", "E,N"},
                                        Argument{"b", "B,T,N"},   Argument{"c", "B,T,N"},
                                        Argument{"d", "E"}};
  static constexpr Integer integer{"chunk", 1};
  static constexpr size_t like = 0;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const SelectiveScan in{rows(t[0]), rows(t[1]), t[2], t[3].t().contiguous(),
                           rows(t[4]), rows(t[5]), t[6]};
    return selective_scan(in, lengths_of(t[0]), chunk).view_as(t[0]);
  }
};

/// dt is that after its softplus, a not positive.
struct SsdOp {
  static constexpr const char* name = "ssd";
  static constexpr std::array arguments{Argument{"x", "B,T,H,P"}, Argument{"dt", "B,T,H"},
                                        Argument{"a", "H"},       Argument{"b", "B,T,G,N"},
                                        Argument{"c", "B,T,G,N"}, Argument{"d", "H"}};
  static constexpr Integer integer{"chunk", 1};
  static constexpr size_t like = 0;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return ssd_y({t[0], t[1], t[2], t[3], t[4], t[5]}, chunk);
  }
};

/// w is negative; chunk is not used.
struct Wkv4Op {
  static constexpr const char* name = "wkv4";
  static constexpr std::array arguments{Argument{"k", "B,T,C"}, Argument{"v", "B,T,C"},
                                        Argument{"w", "C"}, Argument{"u", "C"}};
  static constexpr Integer integer{"chunk", 0};
  static constexpr size_t like = 1;
  static Tensor compute(const Tensors& t, int64_t) {
    return wkv4({rows(t[0]), rows(t[1]), t[2], t[3]}, lengths_of(t[0])).view_as(t[1]);
  }
};

/// The gates are those before their sigmoid.
struct RgLruOp {
  static constexpr const char* name = "rg_lru";
  static constexpr std::array arguments{Argument{"x", "B,T,W"}, Argument{"input_gate", "B,T,W"},
                                        Argument{"recurrent_gate", "B,T,W"},
                                        Argument{"lambda_", "W"}};
  static constexpr Integer integer{"chunk", 1};
  static constexpr size_t like = 0;
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const Tensor scale = 8 * ops::softplus(t[3].to(wide(t[0])));
    return rg_lru({rows(t[0]), rows(t[1]), rows(t[2]), scale}, lengths_of(t[0]), chunk)
        .view_as(t[0]);
  }
};

/// chunk is not used.
template <kernels::Activation activation>
struct ShortConv {
  static constexpr std::array arguments{Argument{"x", "B,T,C"}, Argument{"weight", "C,taps"},
                                        Argument{"bias", "C"}};
  static constexpr Integer integer{"chunk", 0};
  static constexpr size_t like = 0;
  static Tensor compute(const Tensors& t, int64_t) {
    return short_conv(rows(t[0]), t[1], t[2], activation, lengths_of(t[0])).view_as(t[0]);
  }
};
struct ShortConvOp : ShortConv<kernels::Activation::identity> {
  static constexpr const char* name = "short_conv";
};
struct ShortConvSiluOp : ShortConv<kernels::Activation::silu> {
  static constexpr const char* name = "short_conv_silu";
};

/// Of the last `window` keys; 0 = all.
struct CausalAttentionOp {
  static constexpr const char* name = "causal_attention";
  static constexpr std::array arguments{Argument{"q", "B,T,H,D"}, Argument{"k", "B,T,G,D"},
                                        Argument{"v", "B,T,G,D"}};
  static constexpr Integer integer{"window", 0};
  static constexpr size_t like = 0;
  static Tensor compute(const Tensors& t, int64_t window) {
    const double scale = 1 / std::sqrt(static_cast<double>(t[0].size(3)));
    return attention_equal(t[0], t[1], t[2], {.scale = scale, .window = window});
  }
};

using Here =
    All<SelectiveScanOp, SsdOp, Wkv4Op, RgLruOp, ShortConvOp, ShortConvSiluOp, CausalAttentionOp>;

}  // namespace

TESSERA_TORCH_OPS(Here)

}  // namespace tessera::ops::library
