#include "tessera/ops/weights/input_squares.h"

#include <atomic>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

std::atomic<InputSquares*> living = nullptr;

}  // namespace

InputSquares::InputSquares() {
  InputSquares* none = nullptr;
  require(living.compare_exchange_strong(none, this), "input_squares", "there is one already");
}

InputSquares::~InputSquares() {
  living = nullptr;
}

const InputSquares::Sums* InputSquares::of(const void* matrix) const {
  const auto found = by_matrix_.find(matrix);
  return found == by_matrix_.end() ? nullptr : &found->second;
}

void InputSquares::note(const void* matrix, const float* x, int64_t m, int64_t k, int64_t stride) {
  InputSquares* to = living.load(std::memory_order_relaxed);
  if (to == nullptr) return;
  const std::scoped_lock lock(to->mutex_);
  Sums& sums = to->by_matrix_[matrix];
  sums.squares.resize(static_cast<size_t>(k));
  sums.rows += m;
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < k; ++i) {
      const double v = x[row * stride + i];
      sums.squares[static_cast<size_t>(i)] += v * v;
    }
}

}  // namespace tessera::ops
