#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/basic/rope.h"
#include "tessera/ops/basic/fused.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor rotated(const Tensor& x_NHD, const Tensor& cos, const Tensor& sin, bool interleaved) {
  const int64_t heads = x_NHD.size(1), d = x_NHD.size(2);
  Tensor y = x_NHD.clone(at::MemoryFormat::Contiguous);
  kernels::rope(y.data_ptr<float>(),
                {.tokens = x_NHD.size(0),
                 .heads = heads,
                 .head_stride = d,
                 .token_stride = heads * d,
                 .rotary_dim = 2 * cos.size(1),
                 .interleaved = interleaved},
                cos.const_data_ptr<float>(), sin.const_data_ptr<float>());
  return y;
}

/// The gradient of a rotation is the rotation back.
struct Rotation : torch::autograd::Function<Rotation> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_NHD,
                        const Tensor& cos,
                        const Tensor& sin,
                        bool interleaved) {
    context->save_for_backward({cos, sin});
    context->saved_data["interleaved"] = interleaved;
    return rotated(x_NHD, cos, sin, interleaved);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {rotated(gradients[0], saved[0], saved[1].neg(),
                    context->saved_data["interleaved"].toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor fused_rope(const Tensor& x_NHD, const RotaryTable& table, bool interleaved) {
  return Rotation::apply(x_NHD, table.cos_NR.contiguous(), table.sin_NR.contiguous(), interleaved);
}

}  // namespace tessera::ops
