// What the decoding steps of RWKV share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

/// A call of time mixing: what its versions have in common.
class TimeMixCall : public StepCall {
 public:
  /// r, v and o: the products of the receptance, the values and the output.
  TimeMixCall(const StepProduct& r,
              const StepProduct& v,
              const StepProduct& o,
              int64_t heads,
              const StateRows& rows)
      : rows_(rows),
        n_(static_cast<int64_t>(rows.size())),
        d_(r.width()),
        keys_(r.rows()),
        values_(v.rows()),
        states_(rows.size()),
        y_(rows_of(values_)),
        o_(o),
        heads_(heads),
        output_(input_of(values_)) {}

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) final {
    const Team::Share mine = team.share(n_);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      RowState& row = *rows_[static_cast<size_t>(i)];
      states_[static_cast<size_t>(i)] = state_of(row, kTimeState);
      mix(row, i, x_ND, memory);
    }
    project(team, x_ND, memory);
    // what follows is a head's
    const Team::Share own = team.share(n_ * heads_);
    for (int64_t i = own.begin; i < own.end; ++i) head(i / heads_, i % heads_, memory);
    team.wait();
    StepInput read(memory + y_, n_, values_, memory + output_);
    if (read.prepare(team, {&o_})) team.wait();
    multiply(team, read, {{&o_, y_ND}});
  }

 protected:
  /// Places for n rows, as numbers and as inputs of products.
  int64_t rows_of(int64_t width) { return memory_.take(n_ * width); }
  int64_t input_of(int64_t width) { return memory_.take(StepInput::floats(n_, width)); }

  /// What row i's first products read, from the token and the one before it; the row is this
  /// thread's.
  virtual void mix(RowState& row, int64_t i, const float* x_ND, float* memory) = 0;
  /// All products before the recurrence; waits before them, and at the end.
  virtual void project(Team& team, const float* x_ND, float* memory) const = 0;
  /// Head h of row i, from its products to what the output reads, in y_.
  virtual void head(int64_t i, int64_t h, float* memory) const = 0;

  const StateRows& rows_;
  int64_t n_, d_, keys_, values_;
  std::vector<float*> states_;  // by row, once its inputs are mixed
  int64_t y_;

 private:
  const StepProduct& o_;
  int64_t heads_, output_;
};

}  // namespace tessera::nn
