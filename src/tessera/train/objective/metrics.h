// How good answers are, by the measures that their benchmarks report. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Share of equal ones; 0 of none.
double accuracy(std::span<const int64_t> truth, std::span<const int64_t> said);

/// F1 of one class: 2 hits / (said + true); 0 where it is neither said nor true.
double f1_of_class(std::span<const int64_t> truth, std::span<const int64_t> said, int64_t positive);
/// Mean of the F1 of all classes that are true or said somewhere.
double macro_f1(std::span<const int64_t> truth, std::span<const int64_t> said);
/// F1 over all pairs of text and class together; 0 without any.
double micro_f1(std::span<const std::vector<int64_t>> truth,
                std::span<const std::vector<int64_t>> said);

/// Matthews' correlation of any number of classes (Gorodkin 2004); 0 where either side has one.
double matthews(std::span<const int64_t> truth, std::span<const int64_t> said);

/// Linear correlation; 0 where either side does not vary.
double pearson(std::span<const double> truth, std::span<const double> said);
/// Correlation of ranks, equal values at the mean of their ranks.
double spearman(std::span<const double> truth, std::span<const double> said);
/// Ranks from 1, equal values at the mean of theirs.
std::vector<double> average_ranks(std::span<const double> values);

/// Words [begin, end) that are one name of a kind.
struct Entity {
  int64_t begin = 0, end = 0;
  std::string kind;
  bool operator==(const Entity&) const = default;
};
/// Whether labels are IOB2's: "O", "B-..." or "I-...", and not "O" alone.
bool is_iob2(std::span<const std::string> labels);
/// What labels mark: from B-X on, or I-X behind another kind, as the evaluation of CoNLL reads it.
std::vector<Entity> entities(std::span<const std::string> labels);

/// Hits among what is said and what is true, over all texts together.
struct Overlap {
  int64_t hits = 0, said = 0, truth = 0;
  double precision() const;
  double recall() const;
  double f1() const;
  Overlap& operator+=(const Overlap& other);
};
/// Of entities: an entity is hit by one of the same words and kind.
Overlap entity_overlap(std::span<const std::string> truth, std::span<const std::string> said);

/// A text as SQuAD compares it: lower case, without ASCII punctuation, articles, spaces that are
/// too many.
std::string normalized_answer(std::string_view text);
/// Whether they are the same so; two without words are.
bool exact_match(std::string_view truth, std::string_view said);
/// F1 of their words, each as often as it stands there.
double answer_f1(std::string_view truth, std::string_view said);
/// Best of several right answers; none = the right answer is "".
double best_exact_match(std::span<const std::string> truths, std::string_view said);
double best_answer_f1(std::span<const std::string> truths, std::string_view said);

}  // namespace tessera::train
