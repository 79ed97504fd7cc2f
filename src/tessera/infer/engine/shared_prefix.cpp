#include "tessera/infer/engine/shared_prefix.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tessera::infer {
namespace {

int64_t common(const Sequence& a, const Sequence& b) {
  if (a.salt != b.salt || a.salt == Sequence::kAlone || a.source != b.source) return 0;
  const auto end =
      std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()).first;
  return end - a.tokens.begin();
}

}  // namespace

std::vector<std::optional<Wait>> shared_prefixes(const std::vector<const Sequence*>& sequences,
                                                 const std::vector<int64_t>& fed,
                                                 const std::vector<int64_t>& most,
                                                 int64_t least) {
  std::vector<std::optional<Wait>> waits(sequences.size());
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // of all sequences before it in this order, a sequence shares most with its predecessor
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tie(sequences[i]->salt, sequences[i]->source, sequences[i]->tokens);
    };
    return key(a) < key(b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t row = order[i];
    size_t other = order[i - 1];
    const int64_t at = std::min(most[row], common(*sequences[row], *sequences[other]));
    // a sequence that waits for as much or more does not pass that point on its own
    while (waits[other] && waits[other]->at >= at) other = waits[other]->row;
    const int64_t source =
        fed[row] == 0 ? static_cast<int64_t>(sequences[row]->source.size()) : int64_t{0};
    if (at > fed[row] && at > fed[other] && at - fed[row] + source >= least)
      waits[row] = Wait{other, at};
  }
  return waits;
}

}  // namespace tessera::infer
