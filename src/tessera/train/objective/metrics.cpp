#include "tessera/train/objective/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tessera/base/error.h"
#include "tessera/text/answer_scores.h"

namespace tessera::train {
namespace {

template <class A, class B>
void check_sizes(const A& truth, const B& predicted) {
  require(truth.size() == predicted.size(), "metrics", "{} answers; expected {}", predicted.size(),
          truth.size());
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

/// The member with the largest margin, the first of equal ones.
size_t most_likely(const std::vector<int64_t>& members, std::span<const double> margins) {
  return static_cast<size_t>(
      *std::max_element(members.begin(), members.end(), [&](int64_t a, int64_t b) {
        return margins[static_cast<size_t>(a)] < margins[static_cast<size_t>(b)];
      }));
}

}  // namespace

double accuracy(std::span<const int64_t> truth, std::span<const int64_t> predicted) {
  check_sizes(truth, predicted);
  int64_t hits = 0;
  for (size_t i = 0; i < truth.size(); ++i) hits += truth[i] == predicted[i] ? 1 : 0;
  return ratio(static_cast<double>(hits), static_cast<double>(truth.size()));
}

double f1_of_class(std::span<const int64_t> truth,
                   std::span<const int64_t> predicted,
                   int64_t positive) {
  check_sizes(truth, predicted);
  Overlap overlap;
  for (size_t i = 0; i < truth.size(); ++i) {
    overlap.truth += truth[i] == positive ? 1 : 0;
    overlap.predicted += predicted[i] == positive ? 1 : 0;
    overlap.hits += truth[i] == positive && predicted[i] == positive ? 1 : 0;
  }
  return overlap.f1();
}

double macro_f1(std::span<const int64_t> truth, std::span<const int64_t> predicted) {
  std::set<int64_t> classes(truth.begin(), truth.end());
  classes.insert(predicted.begin(), predicted.end());
  double sum = 0;
  for (const int64_t one : classes) sum += f1_of_class(truth, predicted, one);
  return ratio(sum, static_cast<double>(classes.size()));
}

double micro_f1(std::span<const std::vector<int64_t>> truth,
                std::span<const std::vector<int64_t>> predicted) {
  check_sizes(truth, predicted);
  Overlap overlap;
  for (size_t i = 0; i < truth.size(); ++i) {
    overlap.truth += std::ssize(truth[i]);
    overlap.predicted += std::ssize(predicted[i]);
    for (const int64_t one : predicted[i])
      overlap.hits += std::count(truth[i].begin(), truth[i].end(), one);
  }
  return overlap.f1();
}

double matthews(std::span<const int64_t> truth, std::span<const int64_t> predicted) {
  check_sizes(truth, predicted);
  std::map<int64_t, double> of_truth, of_predicted;
  double hits = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    ++of_truth[truth[i]];
    ++of_predicted[predicted[i]];
    hits += truth[i] == predicted[i] ? 1 : 0;
  }
  const auto n = static_cast<double>(truth.size());
  double by_chance = 0, true_squares = 0, predicted_squares = 0;
  for (const auto& [one, count] : of_truth) {
    true_squares += count * count;
    if (const auto found = of_predicted.find(one); found != of_predicted.end())
      by_chance += count * found->second;
  }
  for (const auto& [one, count] : of_predicted) predicted_squares += count * count;
  return ratio(hits * n - by_chance,
               std::sqrt(n * n - true_squares) * std::sqrt(n * n - predicted_squares));
}

double pearson(std::span<const double> truth, std::span<const double> predicted) {
  check_sizes(truth, predicted);
  const auto n = static_cast<double>(std::max<size_t>(1, truth.size()));
  const double mean_a = std::accumulate(truth.begin(), truth.end(), 0.0) / n;
  const double mean_b = std::accumulate(predicted.begin(), predicted.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double a = truth[i] - mean_a, b = predicted[i] - mean_b;
    ab += a * b, aa += a * a, bb += b * b;
  }
  return ratio(ab, std::sqrt(aa) * std::sqrt(bb));
}

std::vector<double> average_ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    // ranks begin + 1 to end have this mean
    const double rank = static_cast<double>(begin + 1 + end) / 2;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

double spearman(std::span<const double> truth, std::span<const double> predicted) {
  return pearson(average_ranks(truth), average_ranks(predicted));
}

int64_t right_choices(const Groups& groups,
                      std::span<const int64_t> truth,
                      std::span<const double> margins) {
  check_sizes(truth, margins);
  int64_t hits = 0;
  for (const std::vector<int64_t>& members : groups)
    hits += truth[most_likely(members, margins)] == 1 ? 1 : 0;
  return hits;
}

int64_t right_groups(const Groups& groups,
                     std::span<const int64_t> truth,
                     std::span<const int64_t> said) {
  check_sizes(truth, said);
  return std::count_if(groups.begin(), groups.end(), [&](const std::vector<int64_t>& members) {
    return std::all_of(members.begin(), members.end(), [&](int64_t i) {
      return truth[static_cast<size_t>(i)] == said[static_cast<size_t>(i)];
    });
  });
}

CandidateScores candidate_scores(const Groups& groups,
                                 std::span<const int64_t> truth,
                                 std::span<const double> margins,
                                 std::span<const std::string> candidates) {
  check_sizes(truth, margins);
  check_sizes(truth, candidates);
  CandidateScores out;
  for (const std::vector<int64_t>& members : groups) {
    std::vector<std::string> right;
    for (const int64_t i : members)
      if (truth[static_cast<size_t>(i)] == 1) right.push_back(candidates[static_cast<size_t>(i)]);
    const std::string& chosen = candidates[most_likely(members, margins)];
    out.exact_match.push_back(text::best_exact_match(right, chosen));
    out.f1.push_back(text::best_answer_f1(right, chosen));
  }
  return out;
}

bool is_iob2(std::span<const std::string> labels) {
  bool marks = false;
  for (const std::string& label : labels) {
    const bool entity = label.size() > 2 && (label.starts_with("B-") || label.starts_with("I-"));
    if (label != "O" && !entity) return false;
    marks = marks || entity;
  }
  return marks;
}

std::vector<Entity> entities(std::span<const std::string> labels) {
  std::vector<Entity> out;
  bool open = false;
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string& label = labels[i];
    const auto at = static_cast<int64_t>(i);
    const bool inside = label.starts_with("I-");
    if (!inside && !label.starts_with("B-")) {
      open = false;
      continue;
    }
    const std::string kind = label.substr(2);
    if (inside && open && out.back().kind == kind)
      out.back().end = at + 1;
    else
      out.push_back({at, at + 1, kind});
    open = true;
  }
  return out;
}

double Overlap::precision() const {
  return ratio(static_cast<double>(hits), static_cast<double>(predicted));
}
double Overlap::recall() const {
  return ratio(static_cast<double>(hits), static_cast<double>(truth));
}
double Overlap::f1() const {
  return ratio(2 * static_cast<double>(hits), static_cast<double>(predicted + truth));
}
Overlap& Overlap::operator+=(const Overlap& other) {
  hits += other.hits, predicted += other.predicted, truth += other.truth;
  return *this;
}

Overlap entity_overlap(std::span<const std::string> truth, std::span<const std::string> predicted) {
  check_sizes(truth, predicted);
  const std::vector<Entity> right = entities(truth), found = entities(predicted);
  Overlap out{0, std::ssize(found), std::ssize(right)};
  for (const Entity& one : found) out.hits += std::count(right.begin(), right.end(), one);
  return out;
}

}  // namespace tessera::train
