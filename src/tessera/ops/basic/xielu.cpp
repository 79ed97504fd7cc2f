#include "tessera/ops/basic/xielu.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"

namespace tessera::ops {

Tensor xielu(const Tensor& x, const Tensor& p, const Tensor& n, double beta, double eps) {
  const auto type = wide(x);
  const Tensor a_p = ops::softplus(p.to(type)), a_n = ops::softplus(n.to(type)) + beta;
  if (kernel_serves(Op::xielu, x)) {
    const Tensor input = x.contiguous();
    Tensor y = at::empty_like(input);
    const auto* from = input.const_data_ptr<float>();
    auto* to = y.data_ptr<float>();
    const auto up = a_p.item<float>(), down = a_n.item<float>();
    const auto b = static_cast<float>(beta), most = static_cast<float>(eps);
    parallel_for(input.numel(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float v = from[i];
        to[i] = v > 0 ? up * v * v + b * v : (std::expm1(std::min(v, most)) - v) * down + b * v;
      }
    });
    return y;
  }
  const Tensor v = x.to(type);
  const Tensor below = at::expm1(v.clamp_max(eps)) - v;
  const Tensor curved = at::where(v > 0, v.square() * over_rows(a_p, v), below * over_rows(a_n, v));
  return (curved + beta * v).to(x.scalar_type());
}

}  // namespace tessera::ops
