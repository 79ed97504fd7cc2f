// Names of activations, one list for every part that has one. Definitions: ops/basic/pointwise.h.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class Activation { identity, relu, gelu, gelu_tanh, quick_gelu, silu, sigmoid, relu2, tanh };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Activation> {
  using A = nn::Activation;
  static constexpr std::array names{std::pair{A::identity, "identity"},
                                    std::pair{A::relu, "relu"},
                                    std::pair{A::gelu, "gelu"},
                                    std::pair{A::gelu_tanh, "gelu_tanh"},
                                    std::pair{A::quick_gelu, "quick_gelu"},
                                    std::pair{A::silu, "silu"},
                                    std::pair{A::sigmoid, "sigmoid"},
                                    std::pair{A::relu2, "relu2"},
                                    std::pair{A::tanh, "tanh"}};
};
