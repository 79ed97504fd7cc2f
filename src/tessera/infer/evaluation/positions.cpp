#include "tessera/infer/evaluation/positions.h"

#include <algorithm>
#include <cmath>

#include "tessera/infer/evaluation/evaluate.h"

namespace tessera::infer {
namespace {

/// nll of the targets of several texts, each predicted from `given` tokens on.
std::vector<std::vector<double>> nll_of(const model::Model& model,
                                        const std::vector<std::vector<int64_t>>& texts,
                                        const std::vector<int64_t>& given,
                                        const PositionOptions& options) {
  std::vector<std::vector<double>> out;
  size_t fed = 0;
  const NextPass next = [&](std::vector<Engine::Result>& before) -> std::vector<Request> {
    for (Engine::Result& result : before) {
      out.emplace_back();
      for (const double log_p : result.generation.log_p) out.back().push_back(-log_p);
    }
    if (fed == texts.size()) return {};
    const std::vector<int64_t>& text = texts[fed];
    const int64_t first = given[fed++];
    // the last token is never an input
    return {scoring({.tokens = {text.begin(), text.end() - 1}},
                    {.begin = first - 1, .ids = {text.begin() + first, text.end()}})};
  };
  evaluate(model, next, options.kv, options.cancel);
  for (const std::vector<double>& window : out)
    for (const double nats : window)
      if (!std::isfinite(nats))
        fail(ErrorKind::input, "eval",
             "a loss is {}: the model gives logits that are not finite; expected a model with "
             "finite weights",
             nats);
  return out;
}

/// Mean over [begin, end) of all windows, which are resampled as wholes.
Estimate mean_nll(const std::vector<std::vector<double>>& nll,
                  int64_t begin,
                  int64_t end,
                  uint64_t seed) {
  std::vector<std::pair<double, int64_t>> sums;
  for (const std::vector<double>& window : nll) {
    sums.emplace_back();
    for (int64_t i = begin; i < std::min(end, std::ssize(window)); ++i) {
      sums.back().first += window[static_cast<size_t>(i)];
      ++sums.back().second;
    }
  }
  return bootstrap(std::ssize(sums), seed, [&](std::span<const int64_t> chosen) {
    double nats = 0;
    int64_t targets = 0;
    for (const int64_t w : chosen) {
      nats += sums[static_cast<size_t>(w)].first;
      targets += sums[static_cast<size_t>(w)].second;
    }
    return nats / static_cast<double>(std::max<int64_t>(targets, 1));
  });
}

/// Consecutive windows of `length` tokens, at most `most`.
std::vector<std::vector<int64_t>> windows_of(const std::vector<int64_t>& ids,
                                             int64_t length,
                                             int64_t most) {
  std::vector<std::vector<int64_t>> windows;
  for (int64_t at = 0; at + length <= std::ssize(ids) && std::ssize(windows) < most; at += length)
    windows.emplace_back(ids.begin() + at, ids.begin() + at + length);
  return windows;
}

}  // namespace

std::vector<PositionBucket> by_position(const std::vector<std::vector<double>>& nll,
                                        uint64_t seed) {
  int64_t longest = 0;
  for (const std::vector<double>& window : nll) longest = std::max(longest, std::ssize(window));
  std::vector<PositionBucket> buckets;
  for (int64_t begin = 0, end = 1; begin < longest; begin = end, end *= 2) {
    const int64_t last = std::min(end, longest);
    buckets.push_back({begin, last, mean_nll(nll, begin, last, seed)});
  }
  return buckets;
}

PositionReport evaluate_positions(const model::Model& model,
                                  const std::vector<int64_t>& ids,
                                  const PositionOptions& options) {
  if (model.spec().encoder || model.spec().arch == model::Arch::encoder)
    fail(ErrorKind::usage, "eval", "perplexity by position needs a decoder");
  if (options.length < 2)
    fail(ErrorKind::usage, "eval",
         "no trained length: this model's context is not stated; expected --lengths N, at least 2");
  const int64_t limit = model.spec().max_positions();
  PositionReport report;
  std::vector<std::vector<int64_t>> longest;
  for (const int64_t factor : options.factors) {
    const int64_t length = factor * options.length;
    if (limit > 0 && length > limit) continue;
    const auto windows = windows_of(ids, length, options.windows);
    if (windows.empty()) continue;
    const auto nll = nll_of(model, windows, std::vector<int64_t>(windows.size(), 1), options);
    report.lengths.push_back({factor, length, std::ssize(windows),
                              mean_nll(nll, 0, length - 1, options.seed),
                              mean_nll(nll, length - options.length, length - 1, options.seed)});
    report.positions = by_position(nll, options.seed);
    longest = windows;
  }
  if (longest.empty())
    fail(ErrorKind::input, "eval",
         "the text has {} tokens, the model {} positions, and a window {}; expected a longer text "
         "or "
         "a shorter --lengths",
         ids.size(), limit > 0 ? fmt::format("{}", limit) : "any number of", options.length);
  const auto length = std::ssize(longest.front());
  const int64_t block = std::min(options.block, length / 2);
  for (int64_t context = 1; context <= length - block; context *= 2) {
    std::vector<std::vector<int64_t>> texts;
    for (const std::vector<int64_t>& window : longest)
      texts.emplace_back(window.end() - block - context, window.end());
    const auto nll = nll_of(model, texts, std::vector<int64_t>(texts.size(), context), options);
    report.contexts.push_back({context, mean_nll(nll, 0, block, options.seed)});
  }
  return report;
}

}  // namespace tessera::infer
