// Rounding to blocks with error feedback (GPTQ: Frantar et al. 2022, arXiv:2210.17323): column
// after column is rounded, and those after it compensate what its error changes in the products
// with inputs that were seen.
//
// With H = X^T X of those inputs, damped, H = U D U^T with U of unit diagonal and upper, column c
// is rounded from
//   w_c + sum_{j < c} (w_j - q_j) U_jc,
// which is what the paper's recursion on the inverse of H comes to (Chee et al. 2023,
// arXiv:2307.13304, sec. 4). A block's scales are those that quantize_rows() chooses for what has
// become of its numbers when its first column is reached, errors weighted by the diagonal of H.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::kernels {

struct FeedbackOptions {
  double damping = 0.01;  // added to the diagonal of H, times its mean
  /// Columns in the order of falling diagonals of H (act-order). Blocks stay where they are; their
  /// scales then come from the numbers as they were.
  bool by_activity = false;
};

/// Whether round_rows writes this type.
bool can_round_with_feedback(DType type);

class ErrorFeedback {
 public:
  /// products: X^T X, k rows of k numbers, which stay while this lives. Throws Error(usage) where
  /// it is no such matrix, or too near to a singular one for the damping.
  ErrorFeedback(const float* products, int64_t k, const FeedbackOptions& options);

  /// dst = the blocks of `rows` rows of k numbers. A row that any of quantize_rows() without
  /// importance, with the diagonal as importance, and the feedback rounds takes the one that leaves
  /// the least of `loss`. Bytes of a row depend on it alone.
  void round_rows(DType type, const float* w, int64_t rows, void* dst) const;

  /// e X^T X e^T for the errors of every row, [rows, k].
  std::vector<double> loss(const float* errors, int64_t rows) const;

 private:
  void feed(DType type, const float* w, int64_t rows, uint8_t* dst) const;

  const float* products_;
  int64_t k_;
  bool by_activity_;
  std::vector<int32_t> order_;     // the column at a position
  std::vector<float> diagonal_;    // of H, by column
  std::vector<float> taken_over_;  // U transposed, by positions: [c, j], j < c
};

}  // namespace tessera::kernels
