#include "tessera/ops/scan/slstm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/threads.h"
#include "tessera/cuda/kernels/slstm.cuh"
#include "tessera/kernels/scan/slstm.h"
#include "tessera/ops/form.h"
#include "tessera/ops/recurrence_function.h"
#include "tessera/ops/scan/cuda_scans.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::Slstm slstm_view(const Slstm& in) {
  kernels::Slstm s;
  s.P = in.r_4DP.size(2);
  s.T = in.pre_N4D.size(0), s.H = in.pre_N4D.size(2) / s.P;
  s.pre = in.pre_N4D.const_data_ptr<float>();
  s.r = in.r_4DP.const_data_ptr<float>();
  s.fresh = true;
  return s;
}

kernels::Slstm narrowed(kernels::Slstm s, int64_t from, int64_t to) {
  const int64_t d = s.H * s.P;
  s.T = to - from;
  s.pre += from * 4 * d;
  s.y += from * d;
  s.gates += from * 4 * d;
  s.cells += from * 3 * d;
  return s;
}

/// Calls body(head, document) for all pairs, in parallel.
void for_heads(int64_t heads,
               const Lengths& lengths,
               const std::function<void(int64_t, size_t)>& body) {
  const auto documents = static_cast<int64_t>(lengths.size());
  parallel_for(heads * documents, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / documents, static_cast<size_t>(i % documents));
  });
}

/// y and the last state. A given state is that before the only document.
struct Cell : torch::autograd::Function<Cell> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& pre_in,
                               const Tensor& r_in,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    context->set_materialize_grads(false);
    const Tensor state = given.value_or(Tensor());
    const Slstm in{pre_in.contiguous(), r_in.contiguous()};
    auto whole = slstm_view(in);
    const int64_t n = whole.T, d = whole.H * whole.P;
    const auto options = in.pre_N4D.options();
    Tensor y = at::empty({n, d}, options), gates = at::empty({n, 4, d}, options),
           cells = at::empty({n, 3, d}, options),
           states = at::zeros({static_cast<int64_t>(lengths.size()), 4, d}, options);
    const Tensor start = state.defined() ? state.contiguous() : state;
    if (start.defined()) states.copy_(start.unsqueeze(0));
    whole.fresh = !start.defined();
    whole.y = y.data_ptr<float>();
    whole.gates = gates.data_ptr<float>();
    whole.cells = cells.data_ptr<float>();
    float* states_data = states.data_ptr<float>();
    const auto offsets = offsets_of(lengths);
    for_heads(whole.H, lengths, [&](int64_t head, size_t i) {
      auto s = narrowed(whole, offsets[i], offsets[i + 1]);
      s.state = states_data + static_cast<int64_t>(i) * 4 * d;
      kernels::slstm(s, head, head + 1);
    });
    context->save_for_backward({in.pre_N4D, in.r_4DP, y, gates, cells, start});
    context->saved_data["lengths"] = lengths;
    return {y, lengths.empty() ? at::zeros({4, d}, options) : states.select(0, -1).clone()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Lengths lengths = context->saved_data["lengths"].toIntVector();
    const auto offsets = offsets_of(lengths);
    const Tensor &y = saved[2], &start = saved[5], dy = given_or_zeros(gradients[0], y);
    auto whole = slstm_view({saved[0], saved[1]});
    whole.y = const_cast<float*>(y.const_data_ptr<float>());
    whole.gates = const_cast<float*>(saved[3].const_data_ptr<float>());
    whole.cells = const_cast<float*>(saved[4].const_data_ptr<float>());
    const int64_t n = whole.T, heads = whole.H, p = whole.P, d = heads * p;
    Tensor dgates = at::empty({n, 4, d}, dy.options()), dstate;
    whole.fresh = !start.defined();
    const float* start_data = whole.fresh ? nullptr : start.const_data_ptr<float>();
    if (start.defined() || gradients[1].defined()) dstate = copy_or_zeros(gradients[1], start);
    float* dstate_data = dstate.defined() ? dstate.data_ptr<float>() : nullptr;
    const float* dy_data = dy.const_data_ptr<float>();
    float* dgates_data = dgates.data_ptr<float>();
    for_heads(heads, lengths, [&](int64_t head, size_t i) {
      kernels::slstm_backward({narrowed(whole, offsets[i], offsets[i + 1]),
                               dy_data + offsets[i] * d, dgates_data + offsets[i] * 4 * d,
                               start_data, i + 1 == lengths.size() ? dstate_data : nullptr},
                              head, head + 1);
    });
    // dR = sum over tokens of dgates h_{t-1}^T, where a document's first token sees zeros
    Tensor before = at::zeros_like(y);
    if (start.defined() && n > 0) before[0].copy_(start[0]);
    for (size_t i = 0; i < lengths.size(); ++i)
      if (lengths[i] > 1)
        before.narrow(0, offsets[i] + 1, lengths[i] - 1)
            .copy_(y.narrow(0, offsets[i], lengths[i] - 1));
    Tensor dr_4HPP = at::empty({4, heads, p, p}, dy.options());
    for (int64_t head = 0; head < heads; ++head) {
      const Tensor of_head = at::empty({4 * p, p}, dy.options());
      multiply_into(of_head, dgates.narrow(2, head * p, p).reshape({n, 4 * p}).t(),
                    before.narrow(1, head * p, p));
      dr_4HPP.select(1, head).copy_(of_head.view({4, p, p}));
    }
    return {dgates, dr_4HPP.view({4, d, p}), start.defined() ? dstate : Tensor(), Tensor()};
  }
};

/// Rows of equal length: pre [B, T, 4, D], state [B, 4, D] or undefined.
std::pair<Tensor, Tensor> recurrent_rows(const Tensor& pre,
                                         const Tensor& r_4DP,
                                         const Tensor& state_B4D) {
  const int64_t b = pre.size(0), t = pre.size(1), d = pre.size(3), p = r_4DP.size(2), heads = d / p;
  Tensor h = at::zeros({b, d}, pre.options()), c = h, n = h, m = h;
  if (state_B4D.defined()) {
    const auto rows = state_B4D.unbind(1);
    h = rows[0], c = rows[1], n = rows[2], m = rows[3];
  }
  const Tensor r = r_4DP.view({4, heads, p, p});
  std::vector<Tensor> ys;
  for (int64_t i = 0; i < t; ++i) {
    const Tensor gates =
        pre.select(1, i) +
        ops::einsum("bhq,ghpq->bghp", h.reshape({b, heads, p}), r).reshape({b, 4, d});
    const auto g = gates.unbind(1);
    const Tensor log_forget = at::log_sigmoid(g[1]);
    // h does not depend on m, which counts as a constant
    const Tensor top =
        i == 0 && !state_B4D.defined() ? g[0].detach() : at::maximum(log_forget + m, g[0]).detach();
    const Tensor forget = (log_forget + m - top).exp(), input = (g[0] - top).exp();
    const bool first = i == 0 && !state_B4D.defined();
    c = first ? input * at::tanh(g[2]) : forget * c + input * at::tanh(g[2]);
    n = first ? input : forget * n + input;
    m = top;
    h = at::sigmoid(g[3]) * c / n;
    ys.push_back(h);
  }
  return {t == 0 ? at::zeros({b, 0, d}, pre.options()) : at::stack(ys, 1),
          at::stack({h, c, n, m}, 1)};
}

}  // namespace

namespace {

/// Whether a head's channels fit into a block of the CUDA kernel.
bool by_cuda(const Slstm& in, Form form) {
  return form == Form::cuda && in.r_4DP.size(2) <= cuda::kSlstmWidest;
}

}  // namespace

Tensor slstm(const Slstm& in, const Lengths& lengths) {
  const auto type = in.pre_N4D.scalar_type(), computed = wide(in.pre_N4D);
  const Form form = form_of(Op::slstm, in.pre_N4D);
  if (by_cuda(in, form)) return slstm_cuda(in, lengths).first.to(type);
  if (on_cpu(form))
    return Cell::apply(in.pre_N4D.to(at::kFloat), in.r_4DP.to(at::kFloat), std::nullopt, lengths)[0]
        .to(type);
  return over_documents(lengths,
                        [&](const auto& rows_of) {
                          return recurrent_rows(rows_of(in.pre_N4D).to(computed),
                                                in.r_4DP.to(computed), {})
                              .first.flatten(0, 1);
                        })
      .to(type);
}

std::pair<Tensor, Tensor> slstm_from(const Slstm& in, const Tensor& state_4D) {
  const Form form = form_of(Op::slstm, in.pre_N4D);
  if (by_cuda(in, form)) {
    const auto [y, state] = slstm_cuda(in, {in.pre_N4D.size(0)}, state_4D);
    return {y.to(in.pre_N4D.scalar_type()), state};
  }
  if (!on_cpu(form)) return slstm_recurrent(in, state_4D);
  const variable_list out = Cell::apply(in.pre_N4D.to(at::kFloat), in.r_4DP.to(at::kFloat),
                                        float_or_none(state_4D), Lengths{in.pre_N4D.size(0)});
  return {out[0].to(in.pre_N4D.scalar_type()), out[1]};
}

std::pair<Tensor, Tensor> slstm_recurrent(const Slstm& in, const Tensor& state_4D) {
  const auto type = wide(in.pre_N4D);
  const auto [y, state] =
      recurrent_rows(in.pre_N4D.to(type).unsqueeze(0), in.r_4DP.to(type),
                     state_4D.defined() ? state_4D.to(type).unsqueeze(0) : Tensor());
  return {y.squeeze(0).to(in.pre_N4D.scalar_type()), state.squeeze(0)};
}

Tensor slstm_kernel(const Slstm& in, Tensor& state_4D, bool fresh) {
  const Slstm dense{in.pre_N4D.contiguous(), in.r_4DP.to(at::kFloat).contiguous()};
  auto s = slstm_view(dense);
  Tensor y = at::empty({s.T, s.H * s.P}, dense.pre_N4D.options());
  s.fresh = fresh;
  s.state = state_4D.data_ptr<float>();
  s.y = y.data_ptr<float>();
  kernels::slstm(s);
  return y;
}

}  // namespace tessera::ops
