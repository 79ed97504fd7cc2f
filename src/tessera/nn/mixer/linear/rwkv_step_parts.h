// What the decoding steps of RWKV share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/nn/mixer/recurrent_step.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {

inline constexpr size_t kTimeState = 0, kTimeLast = 1;  // as time_mix_state declares them

/// put(c, last_c) for every channel of a row's last input, which x then replaces.
template <class Put>
void shift_token(RowState& row, size_t slot, const float* x, int64_t d, const Put& put) {
  float* last = state_of(row, slot);
  for (int64_t c = 0; c < d; ++c) put(c, last[c]);
  std::copy_n(x, d, last);
}

/// y = U act(D x): a product of low rank.
struct LowRankStep {
  StepProduct down, up;
  LowRankStep(const Linear& to, const Linear& from, StepWeights& weights)
      : down(weights.product(to)), up(weights.product(from)) {}
};

}  // namespace tessera::nn
