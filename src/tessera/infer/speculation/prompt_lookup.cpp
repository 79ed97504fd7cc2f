#include "tessera/infer/speculation/prompt_lookup.h"

#include <algorithm>

namespace tessera::infer {
namespace {

/// Number of last tokens, at most `longest`, that also come before position `end` of a text.
int64_t run_before(std::span<const int64_t> text,
                   int64_t end,
                   std::span<const int64_t> tokens,
                   int64_t longest) {
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t most = std::min({longest, end, size});
  int64_t n = 0;
  while (n < most &&
         text[static_cast<size_t>(end - 1 - n)] == tokens[static_cast<size_t>(size - 1 - n)])
    ++n;
  return n;
}

std::vector<int64_t> from(std::span<const int64_t> text, int64_t begin, int64_t count) {
  const auto at = text.begin() + begin;
  return {at, at + std::min(count, static_cast<int64_t>(text.size()) - begin)};
}

}  // namespace

std::vector<int64_t> prompt_lookup(std::span<const int64_t> tokens,
                                   int64_t longest,
                                   int64_t count,
                                   std::span<const int64_t> expected) {
  int64_t best = 0, begin = 0;  // length of the match, and where its continuation begins
  std::span<const int64_t> where;
  // positions from the latest on; a later one wins over an equally long one
  for (const auto text : {expected, tokens})
    for (int64_t end = static_cast<int64_t>(text.size()) - 1; end > 0 && best < longest; --end)
      if (const int64_t n = run_before(text, end, tokens, longest); n > best)
        best = n, begin = end, where = text;
  return from(where, begin, count);
}

DraftTree prompt_lookup_tree(std::span<const int64_t> tokens,
                             int64_t longest,
                             int64_t count,
                             int64_t width,
                             std::span<const int64_t> expected) {
  struct Match {
    int64_t run, begin;
    std::span<const int64_t> text;
  };
  std::vector<Match> matches;
  for (const auto text : {expected, tokens})
    for (int64_t end = static_cast<int64_t>(text.size()) - 1; end > 0; --end)
      if (const int64_t n = run_before(text, end, tokens, longest); n > 0)
        matches.push_back({n, end, text});
  std::stable_sort(matches.begin(), matches.end(),
                   [](const Match& a, const Match& b) { return a.run > b.run; });
  std::vector<std::vector<int64_t>> ways;
  for (const Match& match : matches) {
    if (static_cast<int64_t>(ways.size()) == width) break;
    std::vector<int64_t> way = from(match.text, match.begin, count);
    // only a prefix of a branch that is in the tree
    const auto begins = [&](const std::vector<int64_t>& other) {
      return way.size() <= other.size() && std::equal(way.begin(), way.end(), other.begin());
    };
    if (std::none_of(ways.begin(), ways.end(), begins)) ways.push_back(std::move(way));
  }
  return joined(ways);
}

}  // namespace tessera::infer
