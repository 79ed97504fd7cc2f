// The scans, convolutions and attention of libtessera_ops.so.
#include <cmath>

#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/rg_lru.h"
#include "tessera/ops/scan/selective_scan.h"
#include "tessera/ops/convolution/short_conv.h"
#include "tessera/ops/scan/mamba2.h"
#include "tessera/ops/scan/rwkv4.h"
#include "tessera/ops/library/registered.h"

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
Tensor selective_scan_op(const Tensors& t, int64_t chunk) {
  const SelectiveScan in{rows(t[0]), rows(t[1]), t[2], t[3].t().contiguous(),
                         rows(t[4]), rows(t[5]), t[6]};
  return selective_scan(in, lengths_of(t[0]), chunk).view_as(t[0]);
}

/// dt is that after its softplus, a not positive.
Tensor ssd_op(const Tensors& t, int64_t chunk) {
  return ssd_y({t[0], t[1], t[2], t[3], t[4], t[5]}, chunk);
}

/// w is negative; chunk is not used.
Tensor wkv4_op(const Tensors& t, int64_t) {
  return wkv4({rows(t[0]), rows(t[1]), t[2], t[3]}, lengths_of(t[0])).view_as(t[1]);
}

/// The gates are those before their sigmoid.
Tensor rg_lru_op(const Tensors& t, int64_t chunk) {
  const Tensor scale = 8 * ops::softplus(t[3].to(wide(t[0])));
  return rg_lru({rows(t[0]), rows(t[1]), rows(t[2]), scale}, lengths_of(t[0]), chunk).view_as(t[0]);
}

/// The integer is not used.
template <kernels::Activation activation>
Tensor short_conv_op(const Tensors& t, int64_t) {
  return short_conv(rows(t[0]), t[1], t[2], activation, lengths_of(t[0])).view_as(t[0]);
}

/// Of the last `window` keys; 0 = all.
Tensor causal_attention_op(const Tensors& t, int64_t window) {
  const double scale = 1 / std::sqrt(static_cast<double>(t[0].size(3)));
  return attention_equal(t[0], t[1], t[2], {.scale = scale, .window = window});
}

}  // namespace

const std::vector<Op>& scan_ops() {
  static const std::vector<Op> ops{
      {"selective_scan",
       {{"x", "B,T,E"},
        {"dt", "B,T,E"},
        {"dt_bias", "E"},
        {"a", "E,N"},
        {"b", "B,T,N"},
        {"c", "B,T,N"},
        {"d", "E"}},
       {"chunk", 1},
       0,
       selective_scan_op},
      {"ssd",
       {{"x", "B,T,H,P"},
        {"dt", "B,T,H"},
        {"a", "H"},
        {"b", "B,T,G,N"},
        {"c", "B,T,G,N"},
        {"d", "H"}},
       {"chunk", 1},
       0,
       ssd_op},
      {"wkv4", {{"k", "B,T,C"}, {"v", "B,T,C"}, {"w", "C"}, {"u", "C"}}, {"chunk", 0}, 1, wkv4_op},
      {"rg_lru",
       {{"x", "B,T,W"}, {"input_gate", "B,T,W"}, {"recurrent_gate", "B,T,W"}, {"lambda_", "W"}},
       {"chunk", 1},
       0,
       rg_lru_op},
      {"short_conv",
       {{"x", "B,T,C"}, {"weight", "C,taps"}, {"bias", "C"}},
       {"chunk", 0},
       0,
       short_conv_op<kernels::Activation::identity>},
      {"short_conv_silu",
       {{"x", "B,T,C"}, {"weight", "C,taps"}, {"bias", "C"}},
       {"chunk", 0},
       0,
       short_conv_op<kernels::Activation::silu>},
      {"causal_attention",
       {{"q", "B,T,H,D"}, {"k", "B,T,G,D"}, {"v", "B,T,G,D"}},
       {"window", 0},
       0,
       causal_attention_op}};
  return ops;
}

}  // namespace tessera::ops::library
