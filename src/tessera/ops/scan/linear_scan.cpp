#include "tessera/ops/scan/linear_scan.h"

#include <algorithm>
#include <vector>

namespace tessera::ops {
namespace {

/// [B, T, ...] -> [B, chunks, Q, ...], the end filled with `fill`.
Tensor fold(const Tensor& v, int64_t q, double fill) {
  const int64_t t = v.size(1), chunks = (t + q - 1) / q;
  std::vector<int64_t> padding(2 * static_cast<size_t>(v.dim() - 1), 0);
  padding.back() = chunks * q - t;
  auto sizes = v.sizes().vec();
  sizes[1] = q;
  sizes.insert(sizes.begin() + 1, chunks);
  return at::constant_pad_nd(v, padding, fill).reshape(sizes);
}

}  // namespace

std::pair<Tensor, Tensor> linear_scan(const Tensor& a_in,
                                      const Tensor& b_in,
                                      int64_t chunk,
                                      const Tensor& start) {
  const int64_t t = b_in.size(1), q = std::max<int64_t>(1, std::min(chunk, t));
  auto sizes = b_in.sizes().vec();
  sizes.erase(sizes.begin() + 1);
  Tensor state = start.defined() ? start.to(b_in.scalar_type()) : at::zeros(sizes, b_in.options());
  if (t == 0) return {b_in, state};
  // padding with a = 1, b = 0 leaves the state alone
  Tensor a = fold(a_in, q, 1), b = fold(b_in, q, 0);
  // after a step, a and b of token i say how h_i follows from h_{i - 2 step}
  for (int64_t step = 1; step < q; step *= 2) {
    const auto later = [&](const Tensor& v) { return v.narrow(2, step, q - step); };
    const auto earlier = [&](const Tensor& v) { return v.narrow(2, 0, q - step); };
    b = at::cat({b.narrow(2, 0, step), later(b) + later(a) * earlier(b)}, 2);
    a = at::cat({a.narrow(2, 0, step), later(a) * earlier(a)}, 2);
  }
  std::vector<Tensor> before;
  for (int64_t i = 0; i < b.size(1); ++i) {
    before.push_back(state);
    state = a.select(1, i).select(1, q - 1) * state + b.select(1, i).select(1, q - 1);
  }
  const Tensor h = b + a * at::stack(before, 1).unsqueeze(2);
  return {h.flatten(1, 2).narrow(1, 0, t), state};
}

}  // namespace tessera::ops
