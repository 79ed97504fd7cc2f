// What the columns of weights multiply: sums of squares over the rows that products read, without
// gradients. How much each column matters when a weight is rounded (convert/quantize.h).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tessera::ops {

/// While one lives, products by kernels add to it, from every thread; there is at most one.
class InputSquares {
 public:
  struct Sums {
    std::vector<double> squares;  // by column
    int64_t rows = 0;
  };

  InputSquares();
  ~InputSquares();
  InputSquares(const InputSquares&) = delete;
  InputSquares& operator=(const InputSquares&) = delete;

  /// Of the matrix whose first row lies there; null when nothing has multiplied it.
  const Sums* of(const void* matrix) const;

  /// Adds m rows of k numbers, `stride` apart, to the one that lives, if any.
  static void note(const void* matrix, const float* x, int64_t m, int64_t k, int64_t stride);

 private:
  std::mutex mutex_;
  std::map<const void*, Sums> by_matrix_;
};

}  // namespace tessera::ops
