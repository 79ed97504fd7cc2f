#include "tessera/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::infer {
namespace {

/// Ids by descending logit, equal ones by ascending id; only the first `n` are in order.
std::vector<int64_t> ranked(const std::vector<float>& logits, size_t n) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  n = std::min(n, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    before);
  order.resize(n);
  return order;
}

}  // namespace

void SamplingOptions::check() const {
  const auto range = [](const char* name, double value, bool holds, const char* expected) {
    if (!holds) fail(ErrorKind::usage, "generate", "{} = {}; expected {}", name, value, expected);
  };
  range("temperature", temperature, temperature >= 0 && std::isfinite(temperature),
        "0 (greedy) or more");
  range("top_k", static_cast<double>(top_k), top_k >= 0, "0 (all) or more");
  range("top_p", top_p, top_p > 0 && top_p <= 1, "more than 0 and at most 1");
  range("min_p", min_p, min_p >= 0 && min_p <= 1, "0 to 1");
  range("repetition_penalty", repetition_penalty,
        repetition_penalty > 0 && std::isfinite(repetition_penalty), "more than 0");
}

int64_t sample(std::span<const float> logits,
               std::span<const int64_t> seen,
               const SamplingOptions& options,
               const RandomKey& key) {
  std::vector<float> scores(logits.begin(), logits.end());
  for (float& score : scores)
    if (std::isnan(score)) score = -INFINITY;
  if (options.repetition_penalty != 1) {
    std::vector<bool> done(scores.size(), false);
    for (const int64_t id : seen) {
      const auto i = static_cast<size_t>(id);
      if (i >= scores.size() || done[i]) continue;
      done[i] = true;
      const auto penalty = static_cast<float>(options.repetition_penalty);
      scores[i] = scores[i] > 0 ? scores[i] / penalty : scores[i] * penalty;
    }
  }
  const auto best = std::max_element(scores.begin(), scores.end());  // the first of equals
  if (best == scores.end() || !std::isfinite(*best))
    fail(ErrorKind::input, "generate", "no finite logit among {}", scores.size());
  if (options.temperature == 0) return best - scores.begin();

  const bool nucleus = options.top_p < 1;
  const std::vector<int64_t> order =
      ranked(scores, options.top_k > 0 ? static_cast<size_t>(options.top_k) : scores.size());
  std::vector<double> weights;
  double total = 0;
  for (const int64_t id : order) {
    weights.push_back(std::exp((static_cast<double>(scores[static_cast<size_t>(id)]) - *best) /
                               options.temperature));
    total += weights.back();
  }
  size_t kept = 0;
  double mass = 0;
  for (; kept < weights.size(); ++kept) {
    if (kept > 0 &&
        (weights[kept] < options.min_p * weights[0] || (nucleus && mass >= options.top_p * total)))
      break;
    mass += weights[kept];
  }
  const auto bits = key.block(seen.size());
  double draw =
      (static_cast<double>(bits[0]) + static_cast<double>(bits[1]) * 0x1p-32) * 0x1p-32 * mass;
  for (size_t i = 0; i < kept; ++i) {
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace tessera::infer
