// Evaluation metrics of the usual benchmarks; those of answers are in text/answer_scores.h.
// Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

/// Share of equal values; 0 for none.
double accuracy(std::span<const int64_t> truth, std::span<const int64_t> predicted);

/// F1 of one class: 2 hits / (predicted + true); 0 if it is neither.
double f1_of_class(std::span<const int64_t> truth,
                   std::span<const int64_t> predicted,
                   int64_t positive);
/// Mean of the F1 of all true or predicted classes.
double macro_f1(std::span<const int64_t> truth, std::span<const int64_t> predicted);
/// F1 over all (text, class) pairs; 0 without any.
double micro_f1(std::span<const std::vector<int64_t>> truth,
                std::span<const std::vector<int64_t>> predicted);

/// Matthews correlation for any number of classes (Gorodkin 2004); 0 if either side has only one.
double matthews(std::span<const int64_t> truth, std::span<const int64_t> predicted);

/// Linear correlation; 0 if either side is constant.
double pearson(std::span<const double> truth, std::span<const double> predicted);
/// Rank correlation; equal values have the mean of their ranks.
double spearman(std::span<const double> truth, std::span<const double> predicted);
/// Ranks from 1; equal values have the mean of theirs.
std::vector<double> average_ranks(std::span<const double> values);

/// Examples of each question, by number; none is empty.
using Groups = std::vector<std::vector<int64_t>>;
/// COPA: number of groups whose member with the largest margin, of equal ones the first, is true.
int64_t right_choices(const Groups& groups,
                      std::span<const int64_t> truth,
                      std::span<const double> margins);
/// MultiRC: number of groups with all members right.
int64_t right_groups(const Groups& groups,
                     std::span<const int64_t> truth,
                     std::span<const int64_t> said);
/// ReCoRD: the candidate with the largest margin against the true ones, for each group.
struct CandidateScores {
  std::vector<double> exact_match, f1;  // as SQuAD compares answers (text/answer_scores.h)
};
CandidateScores candidate_scores(const Groups& groups,
                                 std::span<const int64_t> truth,
                                 std::span<const double> margins,
                                 std::span<const std::string> candidates);

/// Words [begin, end) of one named entity and its type.
struct Entity {
  int64_t begin = 0, end = 0;
  std::string kind;
  bool operator==(const Entity&) const = default;
};
/// True for IOB2 labels: "O", "B-..." or "I-...", and not "O" only.
bool is_iob2(std::span<const std::string> labels);
/// The entities of labels: from B-X on, or from I-X after another type, as in the CoNLL evaluation.
std::vector<Entity> entities(std::span<const std::string> labels);

/// Hits among predictions and truth, over all texts.
struct Overlap {
  int64_t hits = 0, predicted = 0, truth = 0;
  double precision() const;
  double recall() const;
  double f1() const;
  Overlap& operator+=(const Overlap& other);
};
/// Entity level: a hit has the same words and type.
Overlap entity_overlap(std::span<const std::string> truth, std::span<const std::string> predicted);

}  // namespace tessera::train
