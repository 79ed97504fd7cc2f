#include "tessera/ops/scan/rg_lru.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/threads.h"
#include "tessera/kernels/scan/rg_lru.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/linear_scan.h"
#include "tessera/ops/recurrence_function.h"
#include "tessera/ops/scan/channel_groups.h"
#include "tessera/ops/scan/cuda_scans.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::RgLru rg_lru_view(const RgLru& in) {
  kernels::RgLru l;
  l.T = in.x_TW.size(0), l.W = in.x_TW.size(1);
  l.x = in.x_TW.const_data_ptr<float>();
  l.in = in.in_TW.const_data_ptr<float>();
  l.rec = in.rec_TW.const_data_ptr<float>();
  l.scale = in.scale_W.const_data_ptr<float>();
  l.fresh = true;
  return l;
}

kernels::RgLru narrowed(kernels::RgLru l, int64_t from, int64_t to) {
  l.T = to - from;
  l.x += from * l.W;
  l.in += from * l.W;
  l.rec += from * l.W;
  l.y += from * l.W;
  return l;
}

/// y and the last state. A given state is that before the only document.
struct Lru : torch::autograd::Function<Lru> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& x,
                               const Tensor& in_gate,
                               const Tensor& rec_gate,
                               const Tensor& scale,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    context->set_materialize_grads(false);
    const Tensor state = given.value_or(Tensor());
    const RgLru in{as_float(x), as_float(in_gate), as_float(rec_gate), as_float(scale)};
    const auto offsets = offsets_of(lengths);
    const Tensor start = state.defined() ? as_float(state) : state;
    Tensor y = at::empty_like(in.x_TW),
           last = start.defined() ? start.clone() : at::zeros_like(in.scale_W);
    auto whole = rg_lru_view(in);
    whole.fresh = !start.defined();
    whole.y = y.data_ptr<float>();
    whole.state = last.data_ptr<float>();
    for_channel_groups(whole.W, lengths.size(), [&](size_t i, int64_t begin, int64_t end) {
      kernels::rg_lru(narrowed(whole, offsets[i], offsets[i + 1]), begin, end);
    });
    context->save_for_backward({in.x_TW, in.in_TW, in.rec_TW, in.scale_W, y, start});
    context->saved_data["lengths"] = lengths;
    return {y, last};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const RgLru in{saved[0], saved[1], saved[2], saved[3]};
    const Tensor &start = saved[5], dy = given_or_zeros(gradients[0], saved[0]);
    Tensor dstate;
    if (start.defined() || gradients[1].defined()) dstate = copy_or_zeros(gradients[1], saved[3]);
    const auto offsets = offsets_of(context->saved_data["lengths"].toIntVector());
    Tensor dx = at::empty_like(dy), din = at::empty_like(dy), drec = at::empty_like(dy);
    Tensor dscale = at::zeros_like(in.scale_W);
    auto whole = rg_lru_view(in);
    whole.fresh = !start.defined();
    whole.y = const_cast<float*>(saved[4].const_data_ptr<float>());
    const float* start_data = whole.fresh ? nullptr : start.const_data_ptr<float>();
    float* dstate_data = dstate.defined() ? dstate.data_ptr<float>() : nullptr;
    const float* dy_data = dy.const_data_ptr<float>();
    float *dx_data = dx.data_ptr<float>(), *din_data = din.data_ptr<float>(),
          *drec_data = drec.data_ptr<float>(), *dscale_data = dscale.data_ptr<float>();
    for_channel_groups(whole.W, offsets.size() - 1, [&](size_t i, int64_t begin, int64_t end) {
      const int64_t at = offsets[i] * whole.W;
      kernels::rg_lru_backward({narrowed(whole, offsets[i], offsets[i + 1]), dy_data + at,
                                dx_data + at, din_data + at, drec_data + at, dscale_data,
                                start_data, i + 2 == offsets.size() ? dstate_data : nullptr},
                               begin, end);
    });
    return {dx, din, drec, dscale, start.defined() ? dstate : Tensor(), Tensor()};
  }
};

/// sqrt(z) whose slope is 1000 at most: 1 - a^2 comes close to 0 where the state is kept.
struct BoundedSqrt : torch::autograd::Function<BoundedSqrt> {
  static Tensor forward(AutogradContext* context, const Tensor& z) {
    const Tensor root = z.sqrt();
    context->save_for_backward({root});
    return root;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor root = context->get_saved_variables()[0];
    return {gradients[0] * (0.5 / root).clamp_max(kernels::kRgLruSteepest / 2)};
  }
};

/// The factors of h_t = a_t h_{t-1} + m_t i_t x_t, where no document begins.
struct LruFactors {
  Tensor a, m, i;

  LruFactors(const Tensor& in_gate, const Tensor& rec_gate, const Tensor& scale_W) {
    const Tensor log_decay = -scale_W * elementwise(Elementwise::sigmoid, rec_gate);
    a = log_decay.exp(), m = BoundedSqrt::apply(-at::expm1(2 * log_decay));
    i = elementwise(Elementwise::sigmoid, in_gate);
  }
};

/// All documents at once by kernels of CUDA, in float32.
std::pair<Tensor, Tensor> lru_by_cuda(const RgLru& in,
                                      const Lengths& lengths,
                                      const Tensor& state_W) {
  const auto type = at::kFloat;
  LruFactors of(in.in_TW.to(type), in.rec_TW.to(type), in.scale_W.to(type));
  if (!state_W.defined()) {
    const auto offsets = offsets_of(lengths);
    std::vector<int64_t> first;
    for (size_t i = 0; i < lengths.size(); ++i)
      if (lengths[i] > 0) first.push_back(offsets[i]);
    const Tensor tokens = at::tensor(first, at::kLong).to(of.a.device());
    of.a = of.a.index_fill(0, tokens, 0);
    of.m = of.m.index_fill(0, tokens, 1);
  }
  return channel_scan_cuda(of.a, of.m * of.i * in.x_TW.to(type), lengths, state_W);
}

/// Rows of equal length, [B, T, W].
std::pair<Tensor, Tensor> chunked_rows(const Tensor& x,
                                       const Tensor& in_gate,
                                       const Tensor& rec_gate,
                                       const Tensor& scale_W,
                                       int64_t chunk,
                                       const Tensor& state_BW) {
  LruFactors of(in_gate, rec_gate, scale_W);
  Tensor &a = of.a, &m = of.m;
  if (!state_BW.defined() && x.size(1) > 0) {
    const int64_t rest = x.size(1) - 1;
    a = at::cat({at::zeros_like(a.narrow(1, 0, 1)), a.narrow(1, 1, rest)}, 1);
    m = at::cat({at::ones_like(m.narrow(1, 0, 1)), m.narrow(1, 1, rest)}, 1);
  }
  return linear_scan(a, m * of.i * x, chunk, state_BW);
}

}  // namespace

namespace {

variable_list lru(const RgLru& in, const Lengths& lengths, const std::optional<Tensor>& state) {
  return Lru::apply(in.x_TW.to(at::kFloat), in.in_TW.to(at::kFloat), in.rec_TW.to(at::kFloat),
                    in.scale_W.to(at::kFloat), state, lengths);
}

}  // namespace

Tensor rg_lru(const RgLru& in, const Lengths& lengths, int64_t chunk) {
  const auto type = in.x_TW.scalar_type(), computed = wide(in.x_TW);
  const Form form = form_of(Op::rg_lru, in.x_TW);
  if (on_cpu(form)) return lru(in, lengths, std::nullopt)[0].to(type);
  if (form == Form::cuda) return lru_by_cuda(in, lengths, {}).first.to(type);
  return over_documents(lengths,
                        [&](const auto& rows_of) {
                          const auto part = [&](const Tensor& t) {
                            return rows_of(t).to(computed);
                          };
                          return chunked_rows(part(in.x_TW), part(in.in_TW), part(in.rec_TW),
                                              in.scale_W.to(computed), chunk, {})
                              .first.flatten(0, 1);
                        })
      .to(type);
}

std::pair<Tensor, Tensor> rg_lru_from(const RgLru& in, int64_t chunk, const Tensor& state_W) {
  const Form form = form_of(Op::rg_lru, in.x_TW);
  if (form == Form::cuda) {
    const auto [y, state] = lru_by_cuda(in, {in.x_TW.size(0)}, state_W);
    return {y.to(in.x_TW.scalar_type()), state};
  }
  if (!on_cpu(form)) return rg_lru_chunked(in, chunk, state_W);
  const variable_list out = lru(in, {in.x_TW.size(0)}, float_or_none(state_W));
  return {out[0].to(in.x_TW.scalar_type()), out[1]};
}

std::pair<Tensor, Tensor> rg_lru_chunked(const RgLru& in, int64_t chunk, const Tensor& state_W) {
  const auto type = wide(in.x_TW);
  const auto part = [&](const Tensor& t) { return t.to(type).unsqueeze(0); };
  const auto [h, last] =
      chunked_rows(part(in.x_TW), part(in.in_TW), part(in.rec_TW), in.scale_W.to(type), chunk,
                   state_W.defined() ? part(state_W) : Tensor());
  return {h.squeeze(0).to(in.x_TW.scalar_type()), last.squeeze(0)};
}

Tensor rg_lru_kernel(const RgLru& in, Tensor& state_W, bool fresh) {
  const RgLru dense{as_float(in.x_TW), as_float(in.in_TW), as_float(in.rec_TW),
                    as_float(in.scale_W)};
  Tensor y = at::empty_like(dense.x_TW);
  auto l = rg_lru_view(dense);
  l.fresh = fresh;
  l.state = state_W.data_ptr<float>();
  l.y = y.data_ptr<float>();
  kernels::rg_lru(l);
  return y;
}

}  // namespace tessera::ops
