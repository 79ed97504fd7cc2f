#include "tessera/ops/scan/channel_scan.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/threads.h"
#include "tessera/kernels/scan/channel_scan.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/linear_scan.h"
#include "tessera/ops/recurrence_function.h"
#include "tessera/ops/scan/channel_groups.h"
#include "tessera/ops/scan/cuda_scans.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// h and the last state. A given state is that before the only document.
struct Channels : torch::autograd::Function<Channels> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& a_in,
                               const Tensor& b_in,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    context->set_materialize_grads(false);
    const Tensor a = a_in.contiguous(), b = b_in.contiguous();
    const Tensor start = given ? given->contiguous() : Tensor();
    const int64_t w = a.size(1), documents = static_cast<int64_t>(lengths.size());
    const auto offsets = offsets_of(lengths);
    Tensor y = at::empty_like(a),
           last = start.defined() ? start.clone().unsqueeze(0)
                                  : at::zeros({std::max<int64_t>(1, documents), w}, a.options());
    const float *a_data = a.const_data_ptr<float>(), *b_data = b.const_data_ptr<float>();
    float *y_data = y.data_ptr<float>(), *last_data = last.data_ptr<float>();
    for_channel_groups(w, lengths.size(), [&](size_t i, int64_t begin, int64_t end) {
      const int64_t at = offsets[i] * w;
      kernels::channel_scan({lengths[i], w, a_data + at, b_data + at,
                             last_data + static_cast<int64_t>(i) * w, y_data + at},
                            begin, end);
    });
    context->save_for_backward({a, y, start});
    context->saved_data["lengths"] = lengths;
    return {y, last[-1].clone()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &a = saved[0], &y = saved[1], &start = saved[2],
                 dy = given_or_zeros(gradients[0], a);
    const Lengths lengths = context->saved_data["lengths"].toIntVector();
    const auto offsets = offsets_of(lengths);
    const int64_t w = a.size(1), documents = static_cast<int64_t>(lengths.size());
    Tensor da = at::empty_like(a), db = at::empty_like(a),
           dstate = at::zeros({std::max<int64_t>(1, documents), w}, a.options());
    if (gradients[1].defined()) dstate[-1].copy_(gradients[1]);
    const float* start_data = start.defined() ? start.const_data_ptr<float>() : nullptr;
    const float *a_data = a.const_data_ptr<float>(), *y_data = y.const_data_ptr<float>(),
                *dy_data = dy.const_data_ptr<float>();
    float *da_data = da.data_ptr<float>(), *db_data = db.data_ptr<float>(),
          *dstate_data = dstate.data_ptr<float>();
    for_channel_groups(w, lengths.size(), [&](size_t i, int64_t begin, int64_t end) {
      const int64_t at = offsets[i] * w;
      kernels::channel_scan_backward(
          {lengths[i], w, a_data + at, y_data + at, dy_data + at, start_data, da_data + at,
           db_data + at, dstate_data + static_cast<int64_t>(i) * w},
          begin, end);
    });
    return {da, db, start.defined() ? dstate[0] : Tensor(), Tensor()};
  }
};

}  // namespace

Tensor channel_scan(const Tensor& a_TW, const Tensor& b_TW, const Lengths& lengths, int64_t chunk) {
  const Form form = form_of(Op::channel_scan, a_TW);
  if (on_cpu(form)) return Channels::apply(a_TW, b_TW, std::nullopt, lengths)[0];
  if (form == Form::cuda)
    return channel_scan_cuda(a_TW, b_TW, lengths).first.to(a_TW.scalar_type());
  return over_documents(lengths, [&](const auto& rows_of) {
    return linear_scan(rows_of(a_TW), rows_of(b_TW), chunk).first.flatten(0, 1);
  });
}

std::pair<Tensor, Tensor> channel_scan_from(const Tensor& a_TW,
                                            const Tensor& b_TW,
                                            int64_t chunk,
                                            const Tensor& state_W) {
  const Form form = form_of(Op::channel_scan, a_TW);
  if (on_cpu(form)) {
    const variable_list out =
        Channels::apply(a_TW, b_TW, float_or_none(state_W), Lengths{a_TW.size(0)});
    return {out[0], out[1]};
  }
  if (form == Form::cuda) {
    const auto [h, last] = channel_scan_cuda(a_TW, b_TW, {a_TW.size(0)}, state_W);
    return {h.to(a_TW.scalar_type()), last};
  }
  const auto [h, last] =
      linear_scan(a_TW.unsqueeze(0), b_TW.unsqueeze(0), chunk, state_W.unsqueeze(0));
  return {h.squeeze(0), last.squeeze(0)};
}

Tensor channel_scan_kernel(const Tensor& a_TW, const Tensor& b_TW, Tensor& state_W) {
  const Tensor a = a_TW.contiguous(), b = b_TW.contiguous();
  Tensor y = at::empty_like(a);
  kernels::channel_scan({a.size(0), a.size(1), a.const_data_ptr<float>(), b.const_data_ptr<float>(),
                         state_W.data_ptr<float>(), y.data_ptr<float>()});
  return y;
}

}  // namespace tessera::ops
