// How state-space mixers come from continuous time to steps.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class Discretisation {
  zoh,       // u is constant during a step
  bilinear,  // the trapezoidal rule
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Discretisation> {
  using D = nn::Discretisation;
  static constexpr std::array names{std::pair{D::zoh, "zoh"}, std::pair{D::bilinear, "bilinear"}};
};
