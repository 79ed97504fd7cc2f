#include "tessera/infer/speculation/draft_length.h"

#include <algorithm>
#include <cmath>

namespace tessera::infer {
namespace {

// The weight of a measurement halves after about 45 others: texts change, and caches grow.
constexpr double kFade = 1 - 1.0 / 64;
// Prior: half of the draft tokens are accepted.
constexpr double kBelief = 1;
// First steps, every other one of them with draft tokens, to measure both costs.
constexpr int64_t kTrials = 8;
constexpr int64_t kLongestWait = 256;

}  // namespace

void LinearCostModel::add(double size, double seconds) {
  for (double* sum : {&n_, &x_, &y_, &xx_, &xy_}) *sum *= kFade;
  n_ += 1;
  x_ += size;
  y_ += seconds;
  xx_ += size * size;
  xy_ += size * seconds;
}

bool LinearCostModel::known() const {
  return n_ > 0 && xx_ - x_ * x_ / n_ > 1e-6 * (xx_ + 1);
}

double LinearCostModel::at(double size) const {
  if (n_ == 0) return 0;
  const double mean = x_ / n_, seconds = y_ / n_;
  double slope = 0;
  if (known())
    slope = (xy_ - x_ * y_ / n_) / (xx_ - x_ * x_ / n_);
  else if (mean > 0)
    slope = seconds / mean;  // through the origin
  return std::max(0.0, seconds + std::max(0.0, slope) * (size - mean));
}

double DraftLengthController::acceptance() const {
  return (right_ + kBelief) / (tried_ + 2 * kBelief);
}

void DraftLengthController::settled(int64_t drafts, int64_t right, int64_t verified) {
  if (drafts == 0) return;
  for (double* sum : {&right_, &tried_, &places_, &verified_}) *sum *= kFade;
  places_ += static_cast<double>(drafts);
  verified_ += static_cast<double>(std::max(drafts, verified));
  width_ = verified_ / places_;
  right_ += static_cast<double>(right);
  tried_ += static_cast<double>(
      std::min(right + 1, drafts));  // draft tokens after a rejected one are not tried
}

double DraftLengthController::speed(int64_t rows, int64_t n) const {
  const double a = std::min(acceptance(), 1 - 1e-9), all = static_cast<double>(rows);
  const double emitted = (1 - std::pow(a, static_cast<double>(n + 1))) / (1 - a);
  const double seconds = calls_.at(all * (static_cast<double>(n) * width_ + 1)) +
                         (n > 0 ? making_.at(all * static_cast<double>(n)) : 0);
  return all * emitted / std::max(seconds, 1e-12);
}

int64_t DraftLengthController::next(int64_t rows) {
  const int64_t step = steps_++;
  if (step < kTrials) return step % 2 == 0 ? most_ : 0;
  int64_t best = 0;
  for (int64_t n = 1; n <= most_; ++n)
    if (speed(rows, n) > speed(rows, best)) best = n;
  if (best > 0) {
    idle_ = 0;
    wait_ = kFirstWait;
    return best;
  }
  // the text may have become easier to predict
  if (++idle_ <= wait_) return 0;
  idle_ = 0;
  wait_ = std::min(2 * wait_, kLongestWait);
  return std::min<int64_t>(2, most_);
}

}  // namespace tessera::infer
