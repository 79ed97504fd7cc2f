// The keys and values of a row under HeavyHitters, as tokens come.
//
// Heavy ones lie one after another, as places 0 .. held - 1, in the order of their tokens; those of
// one place belong to different tokens where heads have kept others. The last tokens follow them,
// so that attention sees keys without gaps. Until something is evicted, places are positions, and
// the numbers are those of attention that keeps all.
#pragma once

#include "tessera/nn/mixer/attention/heavy_hitters.h"
#include "tessera/nn/state.h"
#include "tessera/ops/attention/attention.h"

namespace tessera::nn {

class HeavyKeys {
 public:
  HeavyKeys(const HeavyHitters& who, RowState& row) : who_(who), row_(row) {}

  /// Queries at positions start .. against what the row holds and their own keys, which it then
  /// holds: q_THD, k_TGD, v_TGD -> [T, H, D]. options: without patterns and terms.
  Tensor attend(const Tensor& q_THD,
                const Tensor& k_TGD,
                const Tensor& v_TGD,
                int64_t start,
                const ops::ScoreOptions& options);

 private:
  // of the state's declarations
  static constexpr size_t kKeys = 0, kValues = 1, kHeavyKeys = 2, kHeavyValues = 3, kSums = 4;

  int64_t held(int64_t length) const { return std::min(who_.keep, who_.first_of_last(length)); }
  /// Keys and values that queries after `length` tokens see, `fresh` new tokens included.
  std::vector<ops::KeyValues> places(int64_t length, int64_t fresh) const;
  void evict(int64_t length);

  const HeavyHitters& who_;
  RowState& row_;
};

}  // namespace tessera::nn
