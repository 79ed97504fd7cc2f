// How the weight of a norm enters.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class NormWeight {
  plain,     // y = n * w, w starts at 1
  plus_one,  // y = n * (1 + w), w starts at 0 (Gemma, LayerNorm1P)
  none,      // no parameter
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::NormWeight> {
  static constexpr std::array names{std::pair{nn::NormWeight::plain, "plain"},
                                    std::pair{nn::NormWeight::plus_one, "plus_one"},
                                    std::pair{nn::NormWeight::none, "none"}};
};
