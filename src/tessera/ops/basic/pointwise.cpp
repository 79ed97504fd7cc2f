#include "tessera/ops/basic/pointwise.h"

#include <cmath>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/ops/basic/cuda_fused.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/basic/fused.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/softplus.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

const float* data_or_null(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}
Tensor float_or_undefined(const Tensor& t) {
  return t.defined() ? t.to(at::kFloat).contiguous() : t;
}
int64_t rows_of(const Tensor& x) {
  return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double offset, double eps) {
  const Form form = form_of(Op::rms_norm, x);
  if (form == Form::kernel) {
    const Tensor input = x.contiguous(), w = float_or_undefined(weight);
    Tensor y = at::empty_like(input);
    kernels::rms_norm(input.const_data_ptr<float>(), rows_of(x), x.size(-1), data_or_null(w),
                      static_cast<float>(offset), static_cast<float>(eps), y.data_ptr<float>());
    return y;
  }
  if (form == Form::learning && x.size(-1) > 0 && weight.defined())
    return fused_rms_norm(x, weight.to(at::kFloat), offset, eps);
  if (form == Form::cuda && x.numel() > 0)
    return cuda_rms_norm(x, weight.defined() ? weight.to(at::kFloat) : weight, offset, eps);
  const Tensor wide_x = x.to(wide(x));
  Tensor y = wide_x * spread(at::rsqrt(wide_x.square().mean(-1, true) + eps), wide_x);
  if (weight.defined()) y = y * (weight.to(wide(x)) + offset);
  return y.to(x.scalar_type());
}

Tensor layer_norm(
    const Tensor& x, const Tensor& weight, const Tensor& bias, double offset, double eps) {
  if (kernel_serves(Op::layer_norm, x)) {
    const Tensor input = x.contiguous(), w = float_or_undefined(weight),
                 b = float_or_undefined(bias);
    Tensor y = at::empty_like(input);
    kernels::layer_norm(input.const_data_ptr<float>(), rows_of(x), x.size(-1), data_or_null(w),
                        data_or_null(b), static_cast<float>(offset), static_cast<float>(eps),
                        y.data_ptr<float>());
    return y;
  }
  const Tensor w =
      weight.defined() ? (offset == 0 ? weight : weight + offset).to(wide(x)) : Tensor();
  const Tensor b = bias.defined() ? bias.to(wide(x)) : Tensor();
  const auto normed = [&](const Tensor& factor, const Tensor& added) {
    return at::layer_norm(x.to(wide(x)), {x.size(-1)}, factor, added, eps);
  };
  // libtorch's backward pass has the gradients of all three on a GPU; on a CPU those of w and b are
  // sums over the rows in a fixed order
  if (!at::GradMode::is_enabled() || !on_host(x)) return normed(w, b).to(x.scalar_type());
  Tensor y = normed({}, {});
  if (w.defined()) y = y * over_rows(w, y);
  if (b.defined()) y = y + over_rows(b, y);
  return y.to(x.scalar_type());
}

Tensor activate(const Tensor& x, Activation act) {
  if (kernel_serves(Op::activate, x)) {
    const Tensor input = x.contiguous();
    Tensor y = at::empty_like(input);
    kernels::act(act, input.const_data_ptr<float>(), input.numel(), y.data_ptr<float>());
    return y;
  }
  switch (act) {
    case Activation::identity:
      return x;
    case Activation::relu:
      return at::relu(x);
    case Activation::gelu:
      return elementwise(Elementwise::gelu, x);
    case Activation::gelu_tanh:
      return elementwise(Elementwise::gelu_tanh, x);
    case Activation::quick_gelu:
      return x * elementwise(Elementwise::sigmoid, 1.702 * x);
    case Activation::silu:
      return elementwise(Elementwise::silu, x);
    case Activation::sigmoid:
      return elementwise(Elementwise::sigmoid, x);
    case Activation::relu2:
      return at::relu(x).square();
    case Activation::tanh:
      return at::tanh(x);
  }
  fail(ErrorKind::internal, "activation", "unknown activation {}", static_cast<int>(act));
}

Tensor gated(const Tensor& gate, const Tensor& up, Activation act) {
  const Form form = form_of(Op::gated, gate);
  if (form == Form::kernel) {
    const Tensor g = gate.contiguous(), u = up.contiguous();
    Tensor y = at::empty_like(g);
    kernels::glu(act, g.const_data_ptr<float>(), u.const_data_ptr<float>(), g.numel(),
                 y.data_ptr<float>());
    return y;
  }
  if (act == Activation::silu && form == Form::learning && gate.sizes() == up.sizes() &&
      up.scalar_type() == at::kFloat)
    return fused_swiglu(gate, up);
  if (act == Activation::silu && form == Form::cuda && gate.sizes() == up.sizes() &&
      up.scalar_type() == at::kFloat)
    return cuda_swiglu(gate, up);
  return activate(gate, act) * up;
}

Tensor softcap(const Tensor& x, double c) {
  if (c == 0) return x;
  if (kernel_serves(Op::softcap, x)) {
    Tensor y = x.contiguous().clone();
    kernels::softcap(y.data_ptr<float>(), y.numel(), static_cast<float>(c));
    return y;
  }
  return c * at::tanh(x / c);
}

Tensor softplus(const Tensor& x) {
  if (!kernel_serves(Op::softplus, x)) return elementwise(Elementwise::softplus, x);
  const Tensor input = x.contiguous();
  Tensor y = at::empty_like(input);
  const auto* from = input.const_data_ptr<float>();
  auto* to = y.data_ptr<float>();
  for (int64_t i = 0; i < input.numel(); ++i) to[i] = softplus_of(from[i]);
  return y;
}

Tensor gated_rms_norm(
    const Tensor& y, const Tensor& z, const Tensor& weight, int64_t groups, double eps) {
  const Tensor g = gated(z, y, Activation::silu);
  const int64_t width = g.size(-1) / groups;
  Tensor normed = rms_norm(g.reshape({-1, width}), Tensor(), 0, eps).reshape(g.sizes());
  return normed * over_rows(weight.to(normed.scalar_type()), normed);
}

}  // namespace tessera::ops
