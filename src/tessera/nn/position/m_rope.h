// Multimodal rotary positions: a token has three of them, in time, height and width
// (Batch::axes_3N), and each pair of channels turns by one. Text has all three equal, which is
// "rope".
//   chunked: the first n_t pairs turn by time, the next n_h by height, the last n_w by width
//   interleaved: pairs 1, 4, 7, ... below 3 n_h by height, 2, 5, 8, ... below 3 n_w by width, the
//   rest by time
// Wang et al. 2024, arXiv:2409.12191 (Qwen2-VL, chunked); Qwen3-VL (interleaved). Positions 12.
#pragma once

#include "tessera/nn/position/rope.h"

namespace tessera::nn {

enum class MRopeSections { chunked, interleaved };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::MRopeSections> {
  static constexpr std::array names{std::pair{nn::MRopeSections::chunked, "chunked"},
                                    std::pair{nn::MRopeSections::interleaved, "interleaved"}};
};

namespace tessera::nn {

struct MRopeConfig final : PositionConfig {
  double theta = 10000;
  std::vector<int64_t> sections;
  MRopeSections arrangement = MRopeSections::chunked;

  static constexpr auto fields() {
    using C = MRopeConfig;
    return std::tuple{
        spec::field("theta", &C::theta, "base of the frequencies", {.min = 1e-9}),
        spec::field(
            "sections", &C::sections,
            "pairs that turn by time, height and width; their sum is half the channels that "
            "turn; [] = 3/8 by height and by width each, interleaved 5/16"),
        spec::field("arrangement", &C::arrangement, "how the sections are laid out")};
  }
  static spec::Json example(const spec::Scope& scope, int64_t) {
    const int64_t pairs = scope.turned() / 2, side = pairs / 4;
    return {{"sections", {pairs - 2 * side, side, side}}};
  }
  static spec::Info info() {
    return {.summary = "Rotary positions in time, height and width.",
            .paper =
                "Wang et al.: Qwen2-VL: Enhancing Vision-Language Model's Perception of the World "
                "at Any Resolution, arXiv:2409.12191",
            .year = 2024,
            .forms = {.recurrent = true, .recorded = true},
            .place = spec::Place::rotation};
  }
  void complete(const spec::Scope& scope) override;
  void check(const spec::Scope& scope) const override;
  /// For each pair of a head: 0 time, 1 height, 2 width.
  std::vector<int64_t> axis_of_pair() const;
};

/// A part of a document: tokens of text, then a grid of patches (after merging) where it has one.
struct MRopeSpan {
  int64_t tokens = 0;
  int64_t frames = 0, height = 0, width = 0;
};

/// Positions of a document, [token][axis]: text counts on by one; a grid starts after the greatest
/// position so far and spans its own; what follows starts after the greatest again.
std::vector<std::array<int64_t, 3>> m_rope_positions(const std::vector<MRopeSpan>& spans);

}  // namespace tessera::nn
