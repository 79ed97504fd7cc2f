#include "tessera/ops/basic/rope.h"

#include <cmath>

#include "tessera/kernels/basic/rope.h"
#include "tessera/ops/basic/cuda_fused.h"
#include "tessera/ops/basic/fused.h"
#include "tessera/ops/form.h"

namespace tessera::ops {

RotaryTable rotary_table(const Tensor& positions_N,
                         const Tensor& omega_R,
                         double factor,
                         at::ScalarType type) {
  const Tensor angle_NR = positions_N.to(at::kDouble).unsqueeze(-1) * omega_R;
  return {(angle_NR.cos() * factor).to(type), (angle_NR.sin() * factor).to(type)};
}

RotaryTable rotary_table(const Tensor& positions_N,
                         const std::vector<double>& omega,
                         double factor,
                         at::ScalarType type) {
  // there, without waiting for the positions
  if (!on_cpu(form_of(Op::rotary_table, positions_N)))
    return rotary_table(positions_N, at::tensor(omega, at::kDouble).to(positions_N.device()),
                        factor, type);
  const Tensor positions = positions_N.to(at::kLong).contiguous();
  const auto pairs = static_cast<int64_t>(omega.size());
  const int64_t n = positions.numel();
  RotaryTable table{at::empty({n, pairs}, at::kDouble), at::empty({n, pairs}, at::kDouble)};
  const auto* p = positions.const_data_ptr<int64_t>();
  auto* cosines = table.cos_NR.data_ptr<double>();
  auto* sines = table.sin_NR.data_ptr<double>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t m = 0; m < pairs; ++m) {
      const double angle = static_cast<double>(p[i]) * omega[static_cast<size_t>(m)];
      cosines[i * pairs + m] = factor * std::cos(angle);
      sines[i * pairs + m] = factor * std::sin(angle);
    }
  return {table.cos_NR.to(positions_N.device(), type), table.sin_NR.to(positions_N.device(), type)};
}

Tensor rope(Tensor x_NHD, const RotaryTable& table, bool interleaved) {
  const int64_t n = x_NHD.size(0), heads = x_NHD.size(1), d = x_NHD.size(2),
                r = 2 * table.cos_NR.size(1);
  const Form form = form_of(Op::rope, x_NHD);
  if (form == Form::kernel) {
    Tensor y = !x_NHD.is_contiguous() ? x_NHD.contiguous()
               : sole_owner(x_NHD)    ? std::move(x_NHD)
                                      : x_NHD.clone();
    kernels::rope(y.data_ptr<float>(),
                  {.tokens = n,
                   .heads = heads,
                   .head_stride = d,
                   .token_stride = heads * d,
                   .rotary_dim = r,
                   .interleaved = interleaved},
                  table.cos_NR.const_data_ptr<float>(), table.sin_NR.const_data_ptr<float>());
    return y;
  }
  if (form == Form::learning && table.cos_NR.scalar_type() == at::kFloat)
    return fused_rope(x_NHD, table, interleaved);
  if (form == Form::cuda && table.cos_NR.scalar_type() == at::kFloat)
    return cuda_rope(x_NHD, table, interleaved);
  const auto type = wide(x_NHD);
  const Tensor cos = table.cos_NR.to(type).unsqueeze(1),
               sin = table.sin_NR.to(type).unsqueeze(1);  // [N, 1, r/2]
  const Tensor turning = x_NHD.narrow(-1, 0, r).to(type);
  Tensor a, b;
  if (interleaved) {
    const Tensor pairs = turning.reshape({n, heads, r / 2, 2});
    a = pairs.select(-1, 0);
    b = pairs.select(-1, 1);
  } else {
    a = turning.narrow(-1, 0, r / 2);
    b = turning.narrow(-1, r / 2, r / 2);
  }
  const Tensor a2 = a * cos - b * sin, b2 = a * sin + b * cos;
  const Tensor turned =
      interleaved ? at::stack({a2, b2}, -1).reshape({n, heads, r}) : at::cat({a2, b2}, -1);
  const Tensor out = turned.to(x_NHD.scalar_type());
  return r == d ? out : at::cat({out, x_NHD.narrow(-1, r, d - r)}, -1);
}

}  // namespace tessera::ops
