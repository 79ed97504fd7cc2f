#include "tessera/ops/side_by_side.h"

#include <numeric>

#include "tessera/base/threads.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

void side_by_side(const std::vector<int64_t>& costs, const std::function<void(size_t)>& body) {
  const at::NoGradGuard no_gradients;
  const int64_t total = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  std::vector<size_t> small;
  for (size_t i = 0; i < costs.size(); ++i)
    if (costs.size() > 1 && costs[i] * thread_count() <= total)
      small.push_back(i);
    else
      body(i);
  parallel_in_turn(static_cast<int64_t>(small.size()), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_gradients_here;
    // a region flushes denormals, as kernels are to; what libtorch computes next to them is to be
    // what it is for a row alone
    at::globalContext().setFlushDenormal(false);
    for (int64_t i = begin; i < end; ++i) body(small[static_cast<size_t>(i)]);
  });
}

}  // namespace tessera::ops
