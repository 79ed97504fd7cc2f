// Least values of forget gates that rise with the layer (HGRN, HGRN2). Of the L layers of a stack,
// whatever the others are:  lb_l = sum_{1 <= j <= l} softmax_layers(table)_j
// Qin, Yang, Zhong 2023, arXiv:2311.04823.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class LowerBound {
  learned,  // one table for all layers
  linear,   // l / L, what the table starts as
  none,     // 0
};

/// Declares the table [L, channels], which layers share as `id`; the first layer reads nothing.
void declare_lower_bounds(spec::ParamList& list,
                          const spec::Scope& scope,
                          LowerBound bound,
                          const char* id,
                          int64_t channels);

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::LowerBound> {
  using L = nn::LowerBound;
  static constexpr std::array names{std::pair{L::learned, "learned"},
                                    std::pair{L::linear, "linear"}, std::pair{L::none, "none"}};
};
