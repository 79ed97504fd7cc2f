// Which projections of attention have a bias.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct AttentionBias {
  bool q = false, k = false, v = false, o = false;
  static constexpr auto fields() {
    using C = AttentionBias;
    return std::tuple{spec::field("q", &C::q, "queries"), spec::field("k", &C::k, "keys"),
                      spec::field("v", &C::v, "values"), spec::field("o", &C::o, "output")};
  }
};

}  // namespace tessera::nn
