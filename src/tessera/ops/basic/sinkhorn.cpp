#include "tessera/ops/basic/sinkhorn.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

Tensor plain(const Tensor& z_NSS, int64_t iterations, double eps) {
  const auto over_sums = [eps](const Tensor& c, int64_t dim) {
    return c / spread(ordered_sum(c, {dim}, true) + eps, c);
  };
  Tensor c = over_sums(softmax(z_NSS) + eps, -2);
  for (int64_t i = 1; i < iterations; ++i) c = over_sums(over_sums(c, -1), -2);
  return c;
}

/// Divides the s numbers `stride` apart by their sum + eps.
void normalise(float* c, int64_t s, int64_t stride, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < s; ++i) sum += c[i * stride];
  for (int64_t i = 0; i < s; ++i) c[i * stride] /= sum + eps;
}

void one(const float* z, float* c, int64_t s, int64_t iterations, float eps) {
  for (int64_t r = 0; r < s; ++r) {
    const float* row = z + r * s;
    float* out = c + r * s;
    const float most = *std::max_element(row, row + s);
    for (int64_t i = 0; i < s; ++i) out[i] = std::exp(row[i] - most);
    normalise(out, s, 1, 0);
    for (int64_t i = 0; i < s; ++i) out[i] += eps;
  }
  for (int64_t k = 0; k < iterations; ++k) {
    if (k > 0)
      for (int64_t r = 0; r < s; ++r) normalise(c + r * s, s, 1, eps);
    for (int64_t i = 0; i < s; ++i) normalise(c + i, s, s, eps);
  }
}

}  // namespace

Tensor doubly_stochastic(const Tensor& z_NSS, int64_t iterations, double eps) {
  if (!kernel_serves(Op::doubly_stochastic, z_NSS)) return plain(z_NSS, iterations, eps);
  const Tensor z = z_NSS.contiguous();
  Tensor c = at::empty_like(z);
  const int64_t s = z.size(-1);
  const auto* from = z.const_data_ptr<float>();
  auto* to = c.data_ptr<float>();
  parallel_for(z.size(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      one(from + n * s * s, to + n * s * s, s, iterations, static_cast<float>(eps));
  });
  return c;
}

}  // namespace tessera::ops
