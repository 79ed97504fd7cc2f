#include "tessera/kernels/basic/rope.h"
#include "tessera/ops/basic/fused.h"
#include "tessera/ops/basic/rotation_function.h"

namespace tessera::ops {
namespace {

struct CpuRotation {
  static Tensor rotated(
      const Tensor& x_NHD, const Tensor& cos, const Tensor& sin, bool interleaved, bool back) {
    const int64_t heads = x_NHD.size(1), d = x_NHD.size(2);
    const Tensor turn = back ? sin.neg() : sin;
    Tensor y = x_NHD.clone(at::MemoryFormat::Contiguous);
    kernels::rope(y.data_ptr<float>(),
                  {.tokens = x_NHD.size(0),
                   .heads = heads,
                   .head_stride = d,
                   .token_stride = heads * d,
                   .rotary_dim = 2 * cos.size(1),
                   .interleaved = interleaved},
                  cos.const_data_ptr<float>(), turn.const_data_ptr<float>());
    return y;
  }
};

}  // namespace

Tensor fused_rope(const Tensor& x_NHD, const RotaryTable& table, bool interleaved) {
  return rotated_by<CpuRotation>(x_NHD, table, interleaved);
}

}  // namespace tessera::ops
