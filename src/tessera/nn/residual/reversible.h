// Two streams, of which every branch reads one and adds to the other; then they trade places:
//   (x1, x2) -> (x2, x1 + f(N(x2)))
// so that of a layer with mixer F and feed-forward layer G: y1 = x1 + F(N(x2)), y2 = x2 + G(N(y1)).
// Both begin as the embedding. Gomez, Ren, Urtasun, Grosse 2017, arXiv:1707.04585; Kitaev, Kaiser,
// Levskaya 2020, arXiv:2001.04451 (Reformer). Attention 13.3.
//
// A branch's input follows from its output, so training keeps no activations: the backward pass
// computes each input again (x1 = y2 - f(N(y1))) and, from it, the branch. Memory between the
// passes does not grow with the depth, for one more forward pass of the branches; buckets of a hash
// stay those of the first run, and a branch's gradients differ from the stored ones by what
// rounding does to its input. Training over segments, whose calls continue from a state that has
// moved on by the time of the backward pass, keeps activations as other residuals do.
//
// Where the run of reversible branches ends the streams become one: their mean, or (at the end of
// the stack) both concatenated, y1 then y2, for a norm and a head of 2 * d_model.
#pragma once

#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

enum class StreamMerge { mean, concat };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::StreamMerge> {
  static constexpr std::array names{std::pair{nn::StreamMerge::mean, "mean"},
                                    std::pair{nn::StreamMerge::concat, "concat"}};
};

namespace tessera::nn {

struct ReversibleConfig final : ResidualConfig {
  StreamMerge merge = StreamMerge::mean;

  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{
            spec::field("merge", &ReversibleConfig::merge,
                        "what leaves: the mean of the streams, or both side by side (Reformer)")},
        common_fields<ReversibleConfig>());
  }
  static spec::Info info() {
    return {
        .summary =
            "Two streams whose earlier values follow from later ones, so that training keeps no "
            "activations.",
        .paper =
            "Gomez, Ren, Urtasun, Grosse: The Reversible Residual Network, arXiv:1707.04585; "
            "Kitaev, Kaiser, Levskaya: Reformer, arXiv:2001.04451",
        .year = 2017,
        .forms = {.recurrent = true, .recorded = true}};
  }
  std::vector<std::string> norms() const override { return {"norm"}; }
  std::string carries() const override { return "two streams"; }
  bool recomputes() const override { return true; }
  int64_t streams_left() const override { return merge == StreamMerge::concat ? 2 : 1; }
};

}  // namespace tessera::nn
