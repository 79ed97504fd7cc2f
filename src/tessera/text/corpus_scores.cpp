#include "tessera/text/corpus_scores.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
/// ASCII punctuation but ' , - .
bool is_cut(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}
/// What Python's str.split() splits at.
bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string without(std::string text, std::string_view what, std::string_view instead) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(what, at);
    out.append(text, at, found - at);
    if (found == std::string::npos) return out;
    out += instead;
    at = found + what.size();
  }
}

/// Of every two neighbours for which `meet` is true, which do not overlap, those that `put` writes.
template <class Meet, class Put>
std::string by_neighbours(const std::string& text, Meet meet, Put put) {
  std::string out;
  size_t at = 0;
  while (at < text.size())
    if (at + 1 < text.size() && meet(text[at], text[at + 1])) {
      put(out, text[at], text[at + 1]);
      at += 2;
    } else {
      out += text[at++];
    }
  return out;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  const auto end_word = [&](size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  for_each_character(text, [&](char32_t c, size_t from, size_t to) {
    if (!is_space(c)) return;
    end_word(from);
    begin = to;
  });
  end_word(text.size());
  return words;
}

/// The n-grams of the units that end at `ends`; unit i begins `gap` bytes after the end of i - 1.
using Ngrams = std::unordered_map<std::string_view, int64_t>;
Ngrams ngrams(std::string_view text, const std::vector<size_t>& ends, size_t n, size_t gap) {
  Ngrams counts;
  for (size_t i = 0; i + n <= ends.size(); ++i) {
    const size_t begin = i == 0 ? 0 : ends[i - 1] + gap;
    ++counts[text.substr(begin, ends[i + n - 1] - begin)];
  }
  return counts;
}

int64_t total(const Ngrams& grams) {
  int64_t sum = 0;
  for (const auto& [gram, count] : grams) sum += count;
  return sum;
}

int64_t common(const Ngrams& a, const Ngrams& b) {
  int64_t sum = 0;
  for (const auto& [gram, count] : a)
    if (const auto found = b.find(gram); found != b.end()) sum += std::min(count, found->second);
  return sum;
}

std::vector<size_t> ends_of_words(std::string_view words) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < words.size(); ++at)
    if (words[at] == ' ') ends.push_back(at);
  if (!words.empty()) ends.push_back(words.size());
  return ends;
}

std::vector<size_t> ends_of_characters(std::string_view text) {
  std::vector<size_t> ends;
  for_each_character(text, [&](char32_t, size_t, size_t end) { ends.push_back(end); });
  return ends;
}

std::string without_spaces(std::string_view text) {
  std::string out;
  for (const std::string_view word : split(text)) out += word;
  return out;
}

}  // namespace

std::string words_13a(std::string_view line) {
  std::string text = without(std::string(line), "<skipped>", "");
  text = without(std::move(text), "-\n", "");
  std::replace(text.begin(), text.end(), '\n', ' ');
  for (const auto& [name, character] :
       {std::pair{"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
    text = without(std::move(text), name, character);
  text = " " + text + " ";

  std::string cut;
  for (const char c : text)
    if (is_cut(c))
      cut.append({' ', c, ' '});
    else
      cut += c;
  const auto is_point = [](char c) { return c == '.' || c == ','; };
  const auto behind = [](std::string& out, char a, char b) { out.append({a, ' ', b, ' '}); };
  cut = by_neighbours(
      cut, [&](char a, char b) { return !is_digit(a) && is_point(b); }, behind);
  cut = by_neighbours(
      cut, [&](char a, char b) { return is_point(a) && !is_digit(b); },
      [](std::string& out, char a, char b) {
        out.append({' ', a, ' ', b});
      });
  cut = by_neighbours(
      cut, [](char a, char b) { return is_digit(a) && b == '-'; }, behind);

  std::string words;
  for (const std::string_view word : split(cut)) {
    if (!words.empty()) words += ' ';
    words += word;
  }
  return words;
}

int64_t count_words(std::string_view text) {
  int64_t words = 1;
  bool in_space = false;
  for_each_character(text, [&](char32_t c, size_t, size_t) {
    const bool space = is_space(c);
    words += space && !in_space ? 1 : 0;
    in_space = space;
  });
  return words;
}

void CorpusScores::add(std::string_view generated, std::string_view expected) {
  ++texts_;
  const std::string a = words_13a(generated), b = words_13a(expected);
  const std::vector<size_t> a_ends = ends_of_words(a), b_ends = ends_of_words(b);
  words_generated_ += std::ssize(a_ends);
  words_expected_ += std::ssize(b_ends);
  for (size_t n = 1; n <= words_.size(); ++n) {
    const Ngrams of_a = ngrams(a, a_ends, n, 1), of_b = ngrams(b, b_ends, n, 1);
    words_[n - 1].generated += total(of_a);
    words_[n - 1].common += common(of_a, of_b);
  }

  const std::string c = without_spaces(generated), d = without_spaces(expected);
  const std::vector<size_t> c_ends = ends_of_characters(c), d_ends = ends_of_characters(d);
  for (size_t n = 1; n <= characters_.size(); ++n) {
    const Ngrams of_c = ngrams(c, c_ends, n, 0), of_d = ngrams(d, d_ends, n, 0);
    // without n-grams of this length in the reference, those of the output do not count
    if (!of_d.empty()) characters_[n - 1].generated += total(of_c);
    characters_[n - 1].expected += total(of_d);
    characters_[n - 1].common += common(of_c, of_d);
  }
}

CorpusScores& CorpusScores::operator+=(const CorpusScores& other) {
  const auto add = [](auto& sums, const auto& more) {
    for (size_t n = 0; n < sums.size(); ++n) {
      sums[n].generated += more[n].generated;
      sums[n].expected += more[n].expected;
      sums[n].common += more[n].common;
    }
  };
  texts_ += other.texts_;
  words_generated_ += other.words_generated_;
  words_expected_ += other.words_expected_;
  add(words_, other.words_);
  add(characters_, other.characters_);
  return *this;
}

double CorpusScores::length_ratio() const {
  return words_expected_ == 0
             ? 0
             : static_cast<double>(words_generated_) / static_cast<double>(words_expected_);
}

double CorpusScores::bleu() const {
  double logs = 0, smoothing = 1;
  bool any = false;
  for (const Counts& counts : words_) any = any || counts.common > 0;
  if (!any) return 0;
  for (const Counts& counts : words_) {
    if (counts.generated == 0) return 0;
    double common = static_cast<double>(counts.common);
    if (counts.common == 0) common = 1 / (smoothing *= 2);
    logs += std::log(common / static_cast<double>(counts.generated));
  }
  const double brevity = words_generated_ < words_expected_ ? 1 - 1 / length_ratio() : 0;
  return 100 * std::exp(brevity + logs / static_cast<double>(words_.size()));
}

double CorpusScores::chrf() const {
  double precision = 0, recall = 0;
  int orders = 0;
  for (const Counts& counts : characters_) {
    if (counts.generated == 0 || counts.expected == 0) continue;
    precision += static_cast<double>(counts.common) / static_cast<double>(counts.generated);
    recall += static_cast<double>(counts.common) / static_cast<double>(counts.expected);
    ++orders;
  }
  if (precision + recall <= 0) return 0;
  precision /= orders;
  recall /= orders;
  constexpr double kBetaSquared = 4;
  return 100 * (1 + kBetaSquared) * precision * recall / (kBetaSquared * precision + recall);
}

}  // namespace tessera::text
