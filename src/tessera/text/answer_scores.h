// Metrics of a generated answer against right answers: exact match and F1 of SQuAD (Rajpurkar et
// al. 2016), ROUGE-L (Lin 2004).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera::text {

/// A text normalized as in SQuAD: lower case, without ASCII punctuation, articles and extra spaces.
std::string normalized_answer(std::string_view text);
/// True if they are equal after normalization; two texts without words are.
bool exact_match(std::string_view truth, std::string_view predicted);
/// F1 of their words, counted with repetition.
double answer_f1(std::string_view truth, std::string_view predicted);
/// Best over several right answers; none = the right answer is "".
double best_exact_match(std::span<const std::string> truths, std::string_view predicted);
double best_answer_f1(std::span<const std::string> truths, std::string_view predicted);

/// ROUGE-L: F1 of the longest common subsequence of words. The values equal `fmeasure` of
/// rouge-score 0.1 without stemming; its words are runs of a to z and 0 to 9 of the lower-cased
/// text. Texts without words score 0.
double rouge_l(std::string_view truth, std::string_view predicted);

}  // namespace tessera::text
