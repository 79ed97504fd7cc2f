#include "tessera/infer/encoders/answer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/ranking.h"

namespace tessera::infer {
namespace {

constexpr size_t kBest = 20;  // first and last tokens of a window that are tried

/// Places of the largest values among [begin, begin + n), the largest first.
std::vector<size_t> best_places(const std::vector<double>& values, size_t begin, size_t n) {
  std::vector<size_t> places(n);
  for (size_t i = 0; i < n; ++i) places[i] = i;
  const size_t kept = std::min(kBest, n);
  std::partial_sort(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(kept),
                    places.end(), [&](size_t a, size_t b) {
                      const double x = values[begin + a], y = values[begin + b];
                      return ranks_before(x, a, y, b);
                    });
  places.resize(kept);
  return places;
}

}  // namespace

size_t none_token(const text::AnswerWindow& window, bool causal) {
  return causal ? window.ids.size() - 1 : 0;
}

SpanAnswer best_answer(std::span<const text::AnswerWindow> windows,
                       std::span<const SpanLogits> logits,
                       int64_t max_answer,
                       bool allow_no_answer,
                       bool causal) {
  require(windows.size() == logits.size(), "answer", "logits of {} windows; expected {}",
          logits.size(), windows.size());
  SpanAnswer best{.score = -std::numeric_limits<double>::infinity(),
                  .none_score = std::numeric_limits<double>::infinity()};
  std::vector<double> scores;
  for (size_t w = 0; w < windows.size(); ++w) {
    const text::AnswerWindow& window = windows[w];
    const SpanLogits& at = logits[w];
    const size_t none = none_token(window, causal), first = window.context_begin;
    best.none_score = std::min(best.none_score, at.begin[none] + at.end[none]);
    const auto ends = best_places(at.end, first, window.context.size());
    for (const size_t b : best_places(at.begin, first, window.context.size()))
      for (const size_t e : ends) {
        if (e < b || e - b >= static_cast<size_t>(max_answer)) continue;
        const double score = at.begin[first + b] + at.end[first + e];
        scores.push_back(score);
        if (score <= best.score) continue;
        best.score = score;
        best.begin = window.context[b].begin;
        best.end = window.context[e].end;
        best.found = true;
      }
  }
  if (allow_no_answer) scores.push_back(best.none_score);
  const bool lacks = allow_no_answer && best.none_score > best.score;
  const double chosen = lacks ? best.none_score : best.score;
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - chosen);
  best.probability = sum > 0 ? 1 / sum : 0;
  if (lacks) best.found = false;
  return best;
}

}  // namespace tessera::infer
