#include "tessera/infer/sampling/repetition.h"

#include <algorithm>
#include <cmath>

namespace tessera::infer {

void apply_penalties(std::span<float> scores,
                     std::span<const int64_t> seen,
                     size_t given,
                     const SamplingOptions& o) {
  if (o.repeat_last_n >= 0) {
    seen = seen.last(std::min(seen.size(), static_cast<size_t>(o.repeat_last_n)));
    given = 0;
  }
  std::vector<bool> done(scores.size(), false);
  const auto penalty = static_cast<float>(o.repetition_penalty);
  for (const int64_t id : seen) {
    const auto i = static_cast<size_t>(id);
    if (penalty == 1 || i >= scores.size() || done[i]) continue;
    done[i] = true;
    scores[i] = scores[i] > 0 ? scores[i] / penalty : scores[i] * penalty;
  }
  std::vector<int64_t> said;
  if (o.presence_penalty != 0 || o.frequency_penalty != 0)
    said.assign(seen.begin() + static_cast<std::ptrdiff_t>(std::min(given, seen.size())),
                seen.end());
  std::sort(said.begin(), said.end());
  for (size_t begin = 0, end = 0; begin < said.size(); begin = end) {
    while (end < said.size() && said[end] == said[begin]) ++end;
    const auto i = static_cast<size_t>(said[begin]);
    if (i >= scores.size()) continue;
    const double less = o.frequency_penalty * static_cast<double>(end - begin) + o.presence_penalty;
    scores[i] = static_cast<float>(scores[i] - less);
  }
}

void favour_source(std::span<float> scores, std::span<const int64_t> source, double penalty) {
  if (penalty == 1) return;
  std::vector<bool> done(scores.size(), false);
  const auto factor = static_cast<float>(1 / penalty);
  for (const int64_t id : source) {
    const auto i = static_cast<size_t>(id);
    if (i >= scores.size() || done[i]) continue;
    done[i] = true;
    scores[i] = scores[i] < 0 ? scores[i] * factor : scores[i] / factor;
  }
}

void hasten_end(std::span<float> scores, int64_t made, const SamplingOptions& o) {
  const int64_t further = made - o.exponential_decay_start;
  if (o.exponential_decay_factor == 1 || further <= 0) return;
  // no power beyond what float32 has
  constexpr double kMost = 1e30;
  const double gain =
      std::min(std::pow(o.exponential_decay_factor, static_cast<double>(further)), kMost) - 1;
  for (const int64_t id : o.eos_ids) {
    const auto i = static_cast<size_t>(id);
    if (i >= scores.size() || !std::isfinite(scores[i])) continue;
    const double z = scores[i];
    scores[i] = static_cast<float>(std::min(z + std::abs(z) * gain, kMost));
  }
}

void block_ngrams(std::span<float> scores,
                  std::span<const int64_t> seen,
                  std::span<const int64_t> text,
                  int64_t size) {
  if (size <= 0) return;
  const auto before = static_cast<size_t>(size) - 1;  // tokens that a run has before its last
  if (seen.size() < before) return;
  const std::span<const int64_t> last = seen.last(before);
  for (size_t end = before; end < text.size(); ++end)
    if (std::equal(last.begin(), last.end(),
                   text.begin() + static_cast<std::ptrdiff_t>(end - before)))
      if (const auto i = static_cast<size_t>(text[end]); i < scores.size()) scores[i] = -INFINITY;
}

void bias_sequences(std::span<float> scores,
                    std::span<const int64_t> seen,
                    std::span<const std::pair<std::vector<int64_t>, double>> biases) {
  for (const auto& [sequence, bias] : biases) {
    if (sequence.empty() || sequence.size() - 1 > seen.size()) continue;
    const auto before = seen.end() - (std::ssize(sequence) - 1);
    if (!std::equal(sequence.begin(), sequence.end() - 1, before)) continue;
    if (const auto i = static_cast<size_t>(sequence.back()); i < scores.size())
      scores[i] += static_cast<float>(bias);
  }
}

void apply_dry(std::span<float> scores, std::span<const int64_t> seen, const SamplingOptions& o) {
  if (o.dry_penalty_last_n >= 0)
    seen = seen.last(std::min(seen.size(), static_cast<size_t>(o.dry_penalty_last_n)));
  const auto n = static_cast<int64_t>(seen.size());
  const auto breaks = [&](int64_t id) {
    return std::find(o.dry_breaker_ids.begin(), o.dry_breaker_ids.end(), id) !=
           o.dry_breaker_ids.end();
  };
  // token number i from the end on
  const auto back = [&](int64_t i) { return seen[static_cast<size_t>(n - 1 - i)]; };
  int64_t longest = 0;  // of a match: it ends at the nearest breaker
  while (longest < n && !breaks(back(longest))) ++longest;
  if (longest < std::max<int64_t>(o.dry_allowed_length, 1)) return;
  // z[i]: how many tokens before place i, going back, are those at the end (the Z function)
  std::vector<int64_t> z(static_cast<size_t>(n), 0);
  std::vector<std::pair<int64_t, int64_t>> repeats;  // the token that followed, length
  for (int64_t i = 1, left = 0, right = 0; i < n; ++i) {
    int64_t k = i < right ? std::min(right - i, z[static_cast<size_t>(i - left)]) : 0;
    while (i + k < n && back(k) == back(i + k)) ++k;
    z[static_cast<size_t>(i)] = k;
    if (i + k > right) left = i, right = i + k;
    const int64_t length = std::min(k, longest);
    if (length >= std::max<int64_t>(o.dry_allowed_length, 1) && !breaks(back(i - 1)))
      repeats.emplace_back(back(i - 1), length);
  }
  // no power beyond what float32 has: ln of the largest is 88.72
  const double most = o.dry_base > 1 ? std::floor(88.7228391 / std::log(o.dry_base)) : 0;
  std::sort(repeats.begin(), repeats.end());
  for (size_t i = 0; i < repeats.size(); ++i) {
    const auto [id, length] = repeats[i];
    if (i + 1 < repeats.size() && repeats[i + 1].first == id) continue;  // a longer one follows
    if (static_cast<size_t>(id) >= scores.size()) continue;
    const double power = std::min(static_cast<double>(length - o.dry_allowed_length), most);
    float& score = scores[static_cast<size_t>(id)];
    score = static_cast<float>(score - o.dry_multiplier * std::pow(o.dry_base, power));
  }
}

}  // namespace tessera::infer
