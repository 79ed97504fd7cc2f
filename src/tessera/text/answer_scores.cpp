#include "tessera/text/answer_scores.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

std::vector<std::string> split_at_spaces(std::string_view normalized) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = normalized.find_first_not_of(' ', at)) != normalized.npos;) {
    const size_t end = std::min(normalized.find(' ', at), normalized.size());
    words.emplace_back(normalized.substr(at, end - at));
    at = end;
  }
  return words;
}

/// Runs of a to z and 0 to 9 of the lower-cased text.
std::vector<std::string> rouge_words(std::string_view text) {
  std::string lower, plain;
  for_each_character(text, [&](char32_t c, size_t, size_t) { append_lower_case(lower, c); });
  for (const char c : lower) plain += (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ? c : ' ';
  return split_at_spaces(plain);
}

}  // namespace

std::string normalized_answer(std::string_view text) {
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  std::string plain, word;
  const auto end_word = [&] {
    plain += word == "a" || word == "an" || word == "the" ? " " : word;
    word.clear();
  };
  for_each_character(text, [&](char32_t c, size_t, size_t) {
    if (c < 128 && kPunctuation.find(static_cast<char>(c)) != kPunctuation.npos) return;
    if (is_word_character(c)) return append_lower_case(word, c);
    end_word();
    if (is_white_space(c))
      plain += ' ';
    else
      append_character(plain, c);
  });
  end_word();
  return fmt::format("{}", fmt::join(split_at_spaces(plain), " "));
}

bool exact_match(std::string_view truth, std::string_view predicted) {
  return normalized_answer(truth) == normalized_answer(predicted);
}

double answer_f1(std::string_view truth, std::string_view predicted) {
  const auto right = split_at_spaces(normalized_answer(truth)),
             found = split_at_spaces(normalized_answer(predicted));
  if (right.empty() || found.empty()) return right.empty() && found.empty() ? 1 : 0;
  std::map<std::string, int64_t> left;
  for (const std::string& word : right) ++left[word];
  int64_t hits = 0;
  for (const std::string& word : found)
    if (left[word] > 0) --left[word], ++hits;
  return 2 * static_cast<double>(hits) / static_cast<double>(found.size() + right.size());
}

double best_exact_match(std::span<const std::string> truths, std::string_view predicted) {
  if (truths.empty()) return exact_match("", predicted) ? 1 : 0;
  return std::any_of(truths.begin(), truths.end(),
                     [&](const std::string& truth) { return exact_match(truth, predicted); })
             ? 1
             : 0;
}

double best_answer_f1(std::span<const std::string> truths, std::string_view predicted) {
  if (truths.empty()) return answer_f1("", predicted);
  double best = 0;
  for (const std::string& truth : truths) best = std::max(best, answer_f1(truth, predicted));
  return best;
}

double rouge_l(std::string_view truth, std::string_view predicted) {
  const auto right = rouge_words(truth), found = rouge_words(predicted);
  // longest common subsequence, one row of the table at a time
  std::vector<int64_t> row(found.size() + 1, 0);
  for (const std::string& word : right) {
    int64_t diagonal = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const int64_t above = row[i + 1];
      row[i + 1] = found[i] == word ? diagonal + 1 : std::max(above, row[i]);
      diagonal = above;
    }
  }
  if (row.back() == 0) return 0;
  return 2 * static_cast<double>(row.back()) / static_cast<double>(right.size() + found.size());
}

}  // namespace tessera::text
