#include "tessera/ops/scan/rwkv4.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/threads.h"
#include "tessera/kernels/scan/rwkv4.h"
#include "tessera/ops/form.h"
#include "tessera/ops/recurrence_function.h"
#include "tessera/ops/scan/channel_groups.h"
#include "tessera/ops/scan/cuda_scans.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// below every key, and finite, for the difference of two such must be 0
constexpr double kNothing = -1e38;

kernels::Wkv4 wkv4_view(const Wkv4& in) {
  kernels::Wkv4 s;
  s.T = in.k_TC.size(0), s.C = in.k_TC.size(1);
  s.w = in.w_C.const_data_ptr<float>();
  s.u = in.u_C.const_data_ptr<float>();
  s.k = in.k_TC.const_data_ptr<float>();
  s.v = in.v_TC.const_data_ptr<float>();
  s.fresh = true;
  return s;
}

/// Document i of `whole`, whose kept sums follow those of the documents before it.
kernels::Wkv4 narrowed(kernels::Wkv4 s,
                       const std::vector<int64_t>& offsets,
                       const std::vector<int64_t>& kept_at,
                       size_t i) {
  s.T = offsets[i + 1] - offsets[i];
  s.k += offsets[i] * s.C;
  s.v += offsets[i] * s.C;
  s.y += offsets[i] * s.C;
  s.kept += kept_at[i] * 3 * s.C;
  return s;
}

Tensor nothing_before(int64_t channels, const at::TensorOptions& options) {
  Tensor state = at::zeros({3, channels}, options);
  state.select(0, 2).fill_(kNothing);
  return state;
}

/// y and the last state. A given state is that before the only document.
struct Average : torch::autograd::Function<Average> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& k,
                               const Tensor& v,
                               const Tensor& w,
                               const Tensor& u,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    context->set_materialize_grads(false);
    const Tensor state = given.value_or(Tensor());
    const Wkv4 in{as_float(k), as_float(v), as_float(w), as_float(u)};
    const auto offsets = offsets_of(lengths), kept_at = kept_offsets(offsets, kernels::kWkv4Chunk);
    auto whole = wkv4_view(in);
    whole.fresh = !state.defined();
    Tensor y = at::empty_like(in.k_TC),
           last = state.defined() ? as_float(state).clone() : nothing_before(whole.C, y.options()),
           kept = at::empty({kept_at.back(), 3, whole.C}, y.options());
    whole.y = y.data_ptr<float>();
    whole.state = last.data_ptr<float>();
    whole.kept = kept.data_ptr<float>();
    for_channel_groups(whole.C, lengths.size(), [&](size_t i, int64_t begin, int64_t end) {
      kernels::wkv4(narrowed(whole, offsets, kept_at, i), begin, end);
    });
    context->save_for_backward({in.k_TC, in.v_TC, in.w_C, in.u_C, y, kept, last});
    context->saved_data["lengths"] = lengths;
    context->saved_data["fresh"] = whole.fresh;
    return {y, last};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Wkv4 in{saved[0], saved[1], saved[2], saved[3]};
    const Tensor dy = given_or_zeros(gradients[0], saved[0]);
    const auto offsets = offsets_of(context->saved_data["lengths"].toIntVector());
    const auto kept_at = kept_offsets(offsets, kernels::kWkv4Chunk);
    const bool fresh = context->saved_data["fresh"].toBool();
    Tensor dstate;
    if (!fresh || gradients[1].defined()) dstate = copy_or_zeros(gradients[1], saved[6]);
    Tensor dk = at::empty_like(dy), dv = at::empty_like(dy), dw = at::zeros_like(in.w_C),
           du = at::zeros_like(in.u_C);
    auto whole = wkv4_view(in);
    whole.y = const_cast<float*>(saved[4].const_data_ptr<float>());
    whole.kept = const_cast<float*>(saved[5].const_data_ptr<float>());
    whole.state = const_cast<float*>(saved[6].const_data_ptr<float>());
    float* dstate_data = dstate.defined() ? dstate.data_ptr<float>() : nullptr;
    const float* dy_data = dy.const_data_ptr<float>();
    float *dk_data = dk.data_ptr<float>(), *dv_data = dv.data_ptr<float>(),
          *dw_data = dw.data_ptr<float>(), *du_data = du.data_ptr<float>();
    for_channel_groups(whole.C, offsets.size() - 1, [&](size_t i, int64_t begin, int64_t end) {
      const int64_t at = offsets[i] * whole.C;
      kernels::wkv4_backward(
          {narrowed(whole, offsets, kept_at, i), dy_data + at, dk_data + at, dv_data + at, dw_data,
           du_data, i + 2 == offsets.size() ? dstate_data : nullptr},
          begin, end);
    });
    return {dk, dv, dw, du, fresh ? Tensor() : dstate, Tensor()};
  }
};

/// Sums scaled by e^-top; top only keeps exponents small and is no part of the gradient's path.
struct Sums {
  Tensor num, den, top;
  Sums narrow(int64_t first, int64_t n) const {
    return {num.narrow(1, first, n), den.narrow(1, first, n), top.narrow(1, first, n)};
  }
};

/// a e^{shift} + b, for sums with a shift per channel in the exponent.
Sums add(const Sums& a, const Tensor& shift_C, const Sums& b) {
  const Tensor top = at::maximum(a.top + shift_C.detach(), b.top);
  const Tensor e1 = (a.top + shift_C - top).exp(), e2 = (b.top - top).exp();
  return {e1 * a.num + e2 * b.num, e1 * a.den + e2 * b.den, top};
}

Sums join(const Sums& a, const Sums& b) {
  return {at::cat({a.num, b.num}, 1), at::cat({a.den, b.den}, 1), at::cat({a.top, b.top}, 1)};
}

/// Rows [B, T, C] from `start` [B, 1, C] on: y, and the sums after the last token.
std::pair<Tensor, Sums> parallel_rows(
    const Tensor& k, const Tensor& v, const Tensor& w_C, const Tensor& u_C, const Sums& start) {
  const int64_t t = k.size(1);
  const Tensor top = k.detach(), weight = (k - top).exp();  // 1, with k's gradient
  // prefix sums over the state and the tokens: element i decays once per token after it
  Sums sums = join(start, {weight * v, weight, top});
  for (int64_t step = 1; step <= t; step *= 2)
    sums = join(sums.narrow(0, step),
                add(sums.narrow(0, t + 1 - step), static_cast<double>(step) * w_C,
                    sums.narrow(step, t + 1 - step)));
  const Sums now = add({weight * v, weight, top}, u_C, sums.narrow(0, t));
  return {now.num / now.den, sums.narrow(t, 1)};
}

Sums nothing(const Tensor& k) {
  const Tensor zero = at::zeros({k.size(0), 1, k.size(2)}, k.options());
  return {zero, zero, at::full_like(zero, kNothing)};
}

}  // namespace

namespace {

variable_list average(const Wkv4& in, const Lengths& lengths, const std::optional<Tensor>& state) {
  return Average::apply(in.k_TC.to(at::kFloat), in.v_TC.to(at::kFloat), in.w_C.to(at::kFloat),
                        in.u_C.to(at::kFloat), state, lengths);
}

}  // namespace

Tensor wkv4(const Wkv4& in, const Lengths& lengths) {
  const auto type = in.k_TC.scalar_type(), computed = wide(in.k_TC);
  const Form form = form_of(Op::wkv4, in.k_TC);
  if (on_cpu(form)) return average(in, lengths, std::nullopt)[0].to(type);
  if (form == Form::cuda) return wkv4_cuda(in, lengths).first.to(type);
  return over_documents(
             lengths,
             [&](const auto& rows_of) {
               const Tensor k = rows_of(in.k_TC).to(computed), v = rows_of(in.v_TC).to(computed);
               return parallel_rows(k, v, in.w_C.to(computed), in.u_C.to(computed), nothing(k))
                   .first.flatten(0, 1);
             })
      .to(type);
}

std::pair<Tensor, Tensor> wkv4_from(const Wkv4& in, const Tensor& state_3C) {
  const Form form = form_of(Op::wkv4, in.k_TC);
  if (form == Form::cuda) {
    const auto [y, state] = wkv4_cuda(in, {in.k_TC.size(0)}, state_3C);
    return {y.to(in.k_TC.scalar_type()), state};
  }
  if (!on_cpu(form)) return wkv4_parallel(in, state_3C);
  const variable_list out = average(in, {in.k_TC.size(0)}, float_or_none(state_3C));
  return {out[0].to(in.k_TC.scalar_type()), out[1]};
}

std::pair<Tensor, Tensor> wkv4_parallel(const Wkv4& in, const Tensor& state_3C) {
  const auto type = wide(in.k_TC);
  const Tensor k = in.k_TC.to(type).unsqueeze(0), v = in.v_TC.to(type).unsqueeze(0);
  Sums start = nothing(k);
  if (state_3C.defined()) {
    const auto row = [&](int64_t i) {
      return state_3C.select(0, i).to(type).unsqueeze(0).unsqueeze(0);
    };
    start = {row(0), row(1), row(2).detach()};
  }
  const auto [y, last] = parallel_rows(k, v, in.w_C.to(type), in.u_C.to(type), start);
  return {y.squeeze(0).to(in.k_TC.scalar_type()),
          at::cat({last.num, last.den, last.top}, 1).squeeze(0)};
}

Tensor wkv4_kernel(const Wkv4& in, Tensor& state_3C, bool fresh) {
  const Wkv4 dense{as_float(in.k_TC), as_float(in.v_TC), as_float(in.w_C), as_float(in.u_C)};
  Tensor y = at::empty_like(dense.k_TC);
  auto s = wkv4_view(dense);
  s.fresh = fresh;
  s.state = state_3C.data_ptr<float>();
  s.y = y.data_ptr<float>();
  kernels::wkv4(s);
  return y;
}

}  // namespace tessera::ops
