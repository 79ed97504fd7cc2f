// Sequence length warm-up: sequences are short in the first steps and grow (Press et al. 2021,
// arXiv:2012.15832; Li et al. 2022, arXiv:2108.06084), because short steps are cheap and early
// training needs no long context. Torch-free.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tessera/spec/fields.h"
#include "tessera/train/recipe/counts.h"

namespace tessera::train {

struct Curriculum {
  int64_t from = 16;
  int64_t steps = 0;

  static constexpr auto fields() {
    using C = Curriculum;
    return std::tuple{spec::field("from", &C::from, "tokens of a sequence in the first step",
                                  {.min = 1, .max = kMaxTokens}),
                      spec::field("steps", &C::steps,
                                  "steps until it has train.length, in equal parts; 0 = from the "
                                  "beginning",
                                  {.min = 0, .max = kMaxCount})};
  }
};

/// The length of each sample of a dataset; constant within a step.
struct LengthSchedule {
  int64_t from = 0, to = 0;
  int64_t steps = 0;  // after these it is `to`
  double a_step = 1;  // samples per step

  /// `share`: this dataset's share of the `batch` samples of a step.
  static LengthSchedule of(const Curriculum& how, int64_t length, int64_t batch, double share) {
    return {how.from, length, how.steps, share * static_cast<double>(batch)};
  }
  int64_t at(int64_t sample) const {
    const double step = std::floor(static_cast<double>(sample) / a_step);
    if (step >= static_cast<double>(steps)) return to;
    return std::min(to, from + static_cast<int64_t>(static_cast<double>(to - from) * step /
                                                    static_cast<double>(steps)));
  }
  /// The same fraction of `most`, at least 2.
  int64_t part(int64_t sample, int64_t most) const {
    const int64_t here = at(sample);
    return here == to ? most : std::max<int64_t>(2, most * here / to);
  }
};

}  // namespace tessera::train
