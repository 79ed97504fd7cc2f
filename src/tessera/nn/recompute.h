// What of a stack runs again in the backward pass instead of keeping its activations until then
// (gradient checkpointing: Chen et al. 2016, arXiv:1604.06174). Torch-free; done in
// nn/checkpointing.h.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class RecomputeOf { none, layers, mixers, ffns };

/// Whole layers, or of every layer the branches of one slot.
struct Recompute {
  RecomputeOf of = RecomputeOf::none;
  int64_t every = 1;  // only layers 0, every, 2 every, ...
  bool acts(RecomputeOf what, int64_t layer) const { return of == what && layer % every == 0; }

  static constexpr auto fields() {
    using C = Recompute;
    return std::tuple{
        spec::field("of", &C::of,
                    "what is computed once more in the backward pass instead of being kept"),
        spec::field("every", &C::every, "in every so many layers, from the first on", {.min = 1})};
  }
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::RecomputeOf> {
  using E = tessera::nn::RecomputeOf;
  static constexpr std::array names{std::pair{E::none, "none"}, std::pair{E::layers, "layers"},
                                    std::pair{E::mixers, "mixers"}, std::pair{E::ffns, "ffns"}};
};
