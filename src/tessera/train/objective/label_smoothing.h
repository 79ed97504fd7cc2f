// Label smoothing (loss.h) in recipes. Torch-free.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::train {

enum class SmoothedOver {
  all,     // a share of the target's probability goes to every class, the target included
  others,  // to the other classes only
};

struct LabelSmoothing {
  double share = 0;
  SmoothedOver over = SmoothedOver::all;

  static constexpr auto fields() {
    using C = LabelSmoothing;
    return std::tuple{
        spec::field("share", &C::share, "of the target's probability that is given away",
                    {.min = 0, .below = 1}),
        spec::field("over", &C::over,
                    "all: to every class, the target among them; others: to the others alone")};
  }
  /// The share that gives the same probabilities when distributed over all C classes.
  double over_all(int64_t classes) const {
    const auto c = static_cast<double>(classes);
    return over == SmoothedOver::all || classes < 2 ? share : share * c / (c - 1);
  }
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::SmoothedOver> {
  using E = tessera::train::SmoothedOver;
  static constexpr std::array names{std::pair{E::all, "all"}, std::pair{E::others, "others"}};
};
