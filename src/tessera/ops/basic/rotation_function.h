// The gradient of a rotation of pairs of channels, whatever kernel rotates them.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/ops/basic/rope.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// The rotation of x_NHD by a table of contiguous float32 numbers; its gradient is the rotation
/// back. Kernel::rotated(x_NHD, cos_NR, sin_NR, interleaved, back) computes a tensor of its own.
/// Gradients of gradients are not offered.
template <class Kernel>
struct RotationFunction : torch::autograd::Function<RotationFunction<Kernel>> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static Tensor forward(Context* context,
                        const Tensor& x_NHD,
                        const Tensor& cos_NR,
                        const Tensor& sin_NR,
                        bool interleaved) {
    context->save_for_backward({cos_NR, sin_NR});
    context->saved_data["interleaved"] = interleaved;
    return Kernel::rotated(x_NHD, cos_NR, sin_NR, interleaved, /*back=*/false);
  }
  static Tensors backward(Context* context, const Tensors& gradients) {
    const auto saved = context->get_saved_variables();
    return {Kernel::rotated(gradients[0], saved[0], saved[1],
                            context->saved_data["interleaved"].toBool(), /*back=*/true),
            Tensor(), Tensor(), Tensor()};
  }
};

template <class Kernel>
Tensor rotated_by(const Tensor& x_NHD, const RotaryTable& table, bool interleaved) {
  return RotationFunction<Kernel>::apply(x_NHD, table.cos_NR.contiguous(),
                                         table.sin_NR.contiguous(), interleaved);
}

}  // namespace tessera::ops
