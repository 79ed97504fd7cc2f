#include "tessera/ops/weights/input_products.h"

#include <atomic>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/matmul.h"

namespace tessera::ops {
namespace {

std::atomic<InputProducts*> living_products = nullptr;

constexpr int64_t kRowsThatWait = 512;

}  // namespace

InputProducts::InputProducts(const std::vector<const void*>& matrices) {
  for (const void* matrix : matrices) by_matrix_[matrix];
  InputProducts* none = nullptr;
  require(living_products.compare_exchange_strong(none, this), "input_products",
          "there is one already");
}

InputProducts::~InputProducts() {
  living_products = nullptr;
}

void InputProducts::add(Sums& sums) {
  const int64_t k = sums.k, n = k == 0 ? 0 : std::ssize(sums.waiting) / k;
  if (n == 0) return;
  // the columns as rows, which multiply themselves
  std::vector<float> columns(sums.waiting.size()), products(static_cast<size_t>(k * k));
  parallel_for(k, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < n; ++row)
      for (int64_t c = begin; c < end; ++c)
        columns[static_cast<size_t>(c * n + row)] = sums.waiting[static_cast<size_t>(row * k + c)];
  });
  kernels::matmul(columns.data(), k, n, n, DType::f32, columns.data(), k, nullptr, products.data(),
                  k);
  sums.products.resize(products.size());
  for (size_t i = 0; i < products.size(); ++i) sums.products[i] += products[i];
  sums.rows += n;
  sums.waiting.clear();
}

void InputProducts::note(const void* matrix, const float* x, int64_t m, int64_t k, int64_t stride) {
  InputProducts* to = living_products.load(std::memory_order_relaxed);
  if (to == nullptr) return;
  const std::scoped_lock lock(to->mutex_);
  const auto found = to->by_matrix_.find(matrix);
  if (found == to->by_matrix_.end()) return;
  Sums& sums = found->second;
  sums.k = k;
  for (int64_t row = 0; row < m; ++row) {
    sums.waiting.insert(sums.waiting.end(), x + row * stride, x + row * stride + k);
    if (std::ssize(sums.waiting) >= kRowsThatWait * k) add(sums);
  }
}

std::vector<float> InputProducts::take(const void* matrix) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_matrix_.find(matrix);
  if (found == by_matrix_.end()) return {};
  add(found->second);
  std::vector<float> means = std::move(found->second.products);
  for (float& v : means) v /= static_cast<float>(found->second.rows);
  by_matrix_.erase(found);
  return means;
}

}  // namespace tessera::ops
