#include "tessera/train/data/draws.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::train {

std::vector<int64_t> shuffled(const RandomKey& key, int64_t n, int64_t k) {
  require(k >= 0 && k <= n, "draws", "{} of {}", k, n);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = 0; i < k; ++i)
    std::swap(order[static_cast<size_t>(i)],
              order[static_cast<size_t>(i + below(key, static_cast<uint64_t>(i), n - i))]);
  order.resize(static_cast<size_t>(k));
  return order;
}

std::vector<int64_t> choice(const RandomKey& key, int64_t n, int64_t k) {
  std::vector<int64_t> out = shuffled(key, n, k);
  std::sort(out.begin(), out.end());
  return out;
}

int64_t poisson(double mean, double u) {
  double share = std::exp(-mean), sum = share;
  int64_t n = 0;
  // beyond the smallest probability in double there is nothing
  while (u >= sum && share > 0) {
    share *= mean / static_cast<double>(++n);
    sum += share;
  }
  return n;
}

}  // namespace tessera::train
