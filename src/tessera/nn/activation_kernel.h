// The kernel's name of an activation.
#pragma once

#include "tessera/kernels/activation.h"
#include "tessera/nn/activation.h"

namespace tessera::nn {

inline kernels::Activation kernel_of(Activation act) {
  switch (act) {
    case Activation::identity:
      return kernels::Activation::identity;
    case Activation::relu:
      return kernels::Activation::relu;
    case Activation::gelu:
      return kernels::Activation::gelu;
    case Activation::gelu_tanh:
      return kernels::Activation::gelu_tanh;
    case Activation::quick_gelu:
      return kernels::Activation::quick_gelu;
    case Activation::silu:
      return kernels::Activation::silu;
    case Activation::sigmoid:
      return kernels::Activation::sigmoid;
    case Activation::relu2:
      return kernels::Activation::relu2;
    case Activation::tanh:
      return kernels::Activation::tanh;
  }
  fail(ErrorKind::internal, "activation", "unknown activation {}", static_cast<int>(act));
}

}  // namespace tessera::nn
