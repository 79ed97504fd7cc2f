// What the columns of chosen weights multiply, column by column: X^T X over the rows that products
// read, without gradients. By it weights are rounded so that products change least
// (kernels/weights/error_feedback.h).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tessera::ops {

/// While one lives, products by kernels add to it, from every thread; there is at most one.
class InputProducts {
 public:
  /// Of the matrices whose first rows lie there.
  explicit InputProducts(const std::vector<const void*>& matrices);
  ~InputProducts();
  InputProducts(const InputProducts&) = delete;
  InputProducts& operator=(const InputProducts&) = delete;

  /// Mean products, [k, k], no longer kept here; empty where nothing has multiplied the matrix.
  std::vector<float> take(const void* matrix);

  /// Adds m rows of k numbers, `stride` apart, to the one that lives, if any.
  static void note(const void* matrix, const float* x, int64_t m, int64_t k, int64_t stride);

 private:
  struct Sums {
    std::vector<float> products, waiting;  // rows that are not in the sums yet
    int64_t rows = 0, k = 0;
  };
  static void add(Sums& sums);

  std::mutex mutex_;
  std::map<const void*, Sums> by_matrix_;
};

}  // namespace tessera::ops
