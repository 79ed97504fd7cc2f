#include "tessera/train/masking.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {

MaskDraws MaskDraws::of(const RandomKey& key, int64_t tokens) {
  const auto draw = [&](const char* name) {
    const RandomKey stream = key.fold(name);
    std::vector<double> out;
    for (int64_t i = 0; i < tokens; ++i)
      out.push_back(static_cast<double>(stream.uniform(static_cast<uint64_t>(i))));
    return out;
  };
  return {static_cast<double>(key.fold("count").uniform(0)), draw("select"), draw("change"),
          draw("replace")};
}

void Masking::apply(std::span<int64_t> ids,
                    std::span<int64_t> targets,
                    const MaskDraws& draws) const {
  require(targets.size() == ids.size() && draws.select.size() == ids.size(), "masking",
          "{} targets and {} draws for {} tokens", targets.size(), draws.select.size(), ids.size());
  std::vector<size_t> places;
  for (size_t i = 0; i < ids.size(); ++i)
    if (std::binary_search(ordinary.begin(), ordinary.end(), ids[i])) places.push_back(i);
  if (how.count == MaskCount::bernoulli) {
    std::erase_if(places, [&](size_t i) { return draws.select[i] >= how.rate; });
  } else if (!places.empty()) {
    const double wanted = std::floor(how.rate * static_cast<double>(places.size()) + draws.count);
    std::stable_sort(places.begin(), places.end(),
                     [&](size_t a, size_t b) { return draws.select[a] < draws.select[b]; });
    places.resize(std::min(places.size(), static_cast<size_t>(std::max(1.0, wanted))));
  }
  std::fill(targets.begin(), targets.end(), -1);
  for (const size_t i : places) {
    targets[i] = ids[i];
    if (draws.change[i] < how.mask)
      ids[i] = mask_id;
    else if (draws.change[i] < how.mask + how.random)
      ids[i] =
          ordinary[static_cast<size_t>(draws.replace[i] * static_cast<double>(ordinary.size()))];
  }
}

}  // namespace tessera::train
