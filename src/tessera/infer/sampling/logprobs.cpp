#include "tessera/infer/sampling/logprobs.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::infer {

PositionLogprobs logprobs_of(std::span<const float> logits, int64_t chosen, int64_t top) {
  const double largest =
      logits.empty() ? -INFINITY : *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float z : logits) sum += std::exp(z - largest);
  if (!std::isfinite(sum))
    fail(ErrorKind::input, "generate", "logits that are not finite among {}", logits.size());
  const double all = largest + std::log(sum);
  const auto chance = [&](int64_t id) {
    return TokenLogprob{id, logits[static_cast<size_t>(id)] - all};
  };
  PositionLogprobs out{chance(chosen), {}};
  const auto n =
      static_cast<size_t>(std::clamp<int64_t>(top, 0, static_cast<int64_t>(logits.size())));
  if (n == 0) return out;
  // a heap of the best so far, its worst in front
  const auto better = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<int64_t> best;
  for (int64_t id = 0; id < static_cast<int64_t>(logits.size()); ++id) {
    if (best.size() == n) {
      if (!better(id, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
    best.push_back(id);
    std::push_heap(best.begin(), best.end(), better);
  }
  std::sort_heap(best.begin(), best.end(), better);
  for (const int64_t id : best) out.top.push_back(chance(id));
  return out;
}

}  // namespace tessera::infer
