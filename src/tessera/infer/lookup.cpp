#include "tessera/infer/lookup.h"

#include <algorithm>

namespace tessera::infer {

std::vector<int64_t> look_up(std::span<const int64_t> tokens, int64_t longest, int64_t count) {
  const auto size = static_cast<int64_t>(tokens.size());
  int64_t best = 0, begin = 0;  // length of the run, and what follows it
  // places from the latest on; a later one wins over an equally long one
  for (int64_t end = size - 1; end > 0 && best < longest; --end) {
    int64_t n = 0;
    while (n < std::min(longest, end) &&
           tokens[static_cast<size_t>(end - 1 - n)] == tokens[static_cast<size_t>(size - 1 - n)])
      ++n;
    if (n > best) best = n, begin = end;
  }
  if (best == 0) return {};
  const auto from = tokens.begin() + begin;
  return {from, from + std::min(count, size - begin)};
}

}  // namespace tessera::infer
