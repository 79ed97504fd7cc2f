#include "tessera/infer/lookup.h"

#include <algorithm>
#include <functional>

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

GuessTree look_up(std::span<const int64_t> tokens, int64_t longest, int64_t count, int64_t width) {
  const auto size = static_cast<int64_t>(tokens.size());
  std::vector<std::pair<int64_t, int64_t>> places;  // length of the run, what follows it
  for (int64_t end = 1; end < size; ++end) {
    int64_t n = 0;
    while (n < std::min(longest, end) &&
           tokens[static_cast<size_t>(end - 1 - n)] == tokens[static_cast<size_t>(size - 1 - n)])
      ++n;
    if (n > 0) places.emplace_back(n, end);
  }
  std::sort(places.begin(), places.end(), std::greater<>());
  std::vector<std::vector<int64_t>> ways;
  for (const auto& [n, begin] : places) {
    if (static_cast<int64_t>(ways.size()) == width) break;
    const auto from = tokens.begin() + begin;
    std::vector<int64_t> way(from, from + std::min(count, size - begin));
    // nothing but a beginning of what is there
    const auto begins = [&](const std::vector<int64_t>& other) {
      return way.size() <= other.size() && std::equal(way.begin(), way.end(), other.begin());
    };
    if (std::none_of(ways.begin(), ways.end(), begins)) ways.push_back(std::move(way));
  }
  return joined(ways);
}

}  // namespace tessera::infer
