#include "tessera/train/objective/masked_lm/masking.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

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
          draw("replace"), draw("span")};
}

std::vector<bool> word_starts(const text::Tokenizer& tokenizer) {
  constexpr std::string_view kSpace = "\u2581";
  // byte-level BPE's characters for the bytes 9, 10, 13 and 32
  constexpr std::array<std::string_view, 4> kBytes = {"\u0120", "\u010a", "\u0109", "\u010d"};
  const auto n = static_cast<size_t>(tokenizer.vocab_size());
  std::vector<std::string> tokens(n);
  std::array<int64_t, 3> marked{};  // by byte-level BPE, SentencePiece, WordPiece
  for (size_t i = 0; i < n; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (tokenizer.is_special(id)) continue;
    try {
      tokens[i] = tokenizer.token(id);
    } catch (const Error&) {
      continue;  // an id without a token
    }
    marked[0] += tokens[i].starts_with(kBytes[0]);
    marked[1] += tokens[i].starts_with(kSpace);
    marked[2] += tokens[i].size() > 2 && tokens[i].starts_with("##");
  }
  const auto kind = std::max_element(marked.begin(), marked.end()) - marked.begin();
  std::vector<bool> out(n);
  for (size_t i = 0; i < n; ++i) {
    if (marked[static_cast<size_t>(kind)] == 0) {
      const auto id = static_cast<int32_t>(i);
      const std::string text = tokenizer.decode(std::span(&id, 1));
      out[i] = !text.empty() && std::string_view(" \t\n\r").find(text[0]) != std::string::npos;
    } else if (kind == 0) {
      out[i] = std::any_of(kBytes.begin(), kBytes.end(),
                           [&](std::string_view mark) { return tokens[i].starts_with(mark); });
    } else {
      out[i] = kind == 1 ? tokens[i].starts_with(kSpace) : !tokens[i].starts_with("##");
    }
  }
  return out;
}

int64_t span_words(double u) {
  constexpr double kEnd = 0.2;
  constexpr int64_t kMost = 10;
  double left = u * (1 - std::pow(1 - kEnd, kMost)), share = kEnd;
  int64_t words = 1;
  for (; words < kMost && left >= share; ++words, share *= 1 - kEnd) left -= share;
  return words;
}

namespace {

/// Tokens that are masked together: one, or those of a word.
struct Word {
  size_t begin = 0, length = 0;
};

struct Selected {
  size_t place = 0, change = 0;  // token whose draw selects the replacement
};

/// The words of a text in order, or its tokens for other units.
std::vector<Word> words_of(const Masking& masking,
                           std::span<const int64_t> ids,
                           std::span<const int64_t> begins) {
  std::vector<Word> words;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!std::binary_search(masking.ordinary.begin(), masking.ordinary.end(), ids[i])) continue;
    const bool goes_on = masking.how.unit != MaskUnit::token && !words.empty() &&
                         words.back().begin + words.back().length == i &&
                         !masking.starts.at(static_cast<size_t>(ids[i])) &&
                         !std::binary_search(begins.begin(), begins.end(), static_cast<int64_t>(i));
    if (goes_on)
      ++words.back().length;
    else
      words.push_back({i, 1});
  }
  return words;
}

/// Spans of adjacent words from each anchor on.
std::vector<Selected> spans_of(const std::vector<Word>& words,
                               const std::vector<size_t>& order,
                               const MaskDraws& draws,
                               size_t budget,
                               std::span<const int64_t> begins) {
  std::vector<bool> taken(words.size());
  std::vector<Selected> out;
  for (const size_t anchor : order) {
    const size_t first = words[anchor].begin;
    const auto most = static_cast<size_t>(span_words(draws.span.at(first)));
    for (size_t w = anchor; w < words.size() && w < anchor + most; ++w) {
      const bool apart =
          w > anchor &&
          (words[w - 1].begin + words[w - 1].length != words[w].begin ||
           std::binary_search(begins.begin(), begins.end(), static_cast<int64_t>(words[w].begin)));
      if (taken[w] || apart || out.size() + words[w].length > budget) break;
      taken[w] = true;
      for (size_t i = 0; i < words[w].length; ++i) out.push_back({words[w].begin + i, first});
    }
  }
  return out;
}

}  // namespace

void Masking::apply(std::span<int64_t> ids,
                    std::span<int64_t> targets,
                    const MaskDraws& draws,
                    std::span<const int64_t> begins) const {
  require(targets.size() == ids.size() && draws.select.size() == ids.size(), "masking",
          "{} targets and {} draws for {} tokens", targets.size(), draws.select.size(), ids.size());
  const std::vector<Word> words = words_of(*this, ids, begins);
  double tokens = 0;
  for (const Word& word : words) tokens += static_cast<double>(word.length);
  std::vector<size_t> order(words.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto drawn = [&](size_t w) { return draws.select[words[w].begin]; };
  auto budget = ids.size();
  if (how.count == MaskCount::bernoulli) {
    std::erase_if(order, [&](size_t w) { return drawn(w) >= how.rate; });
  } else {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return drawn(a) < drawn(b); });
    budget = static_cast<size_t>(std::max(1.0, std::floor(how.rate * tokens + draws.count)));
  }
  std::vector<Selected> places;
  if (how.unit == MaskUnit::span) {
    places = spans_of(words, order, draws, budget, begins);
  } else {
    for (const size_t w : order)
      if (places.size() + words[w].length <= budget)
        for (size_t i = words[w].begin; i < words[w].begin + words[w].length; ++i)
          places.push_back({i, i});
  }
  std::fill(targets.begin(), targets.end(), -1);
  for (const auto& [i, change] : places) {
    targets[i] = ids[i];
    if (draws.change[change] < how.mask)
      ids[i] = mask_id;
    else if (draws.change[change] < how.mask + how.random)
      ids[i] =
          ordinary[static_cast<size_t>(draws.replace[i] * static_cast<double>(ordinary.size()))];
  }
}

}  // namespace tessera::train
