#include "tessera/nn/mixer/recurrence.h"

#include <cmath>

#include "tessera/ops/ssm.h"

namespace tessera::nn {

Tensor Run::of(const Tensor& x, std::initializer_list<int64_t> tail) const {
  std::vector<int64_t> sizes{b, t};
  sizes.insert(sizes.end(), tail);
  return x.narrow(0, begin, b * t).reshape(sizes);
}

std::vector<Run> runs_of(const Tensor& x_ND, const Context& context, const StateRows* rows) {
  const Batch& batch = *context.batch;
  if (const int64_t t = batch.equal_length(); rows == nullptr && t > 0 && !ops::use_kernels(x_ND))
    return {{0, x_ND.size(0) / t, t}};
  std::vector<Run> runs;
  for (size_t i = 0; i < batch.segments.size(); ++i)
    runs.push_back({batch.segments[i].begin, 1, batch.segments[i].length,
                    rows != nullptr ? (*rows)[i] : nullptr, ops::use_kernels(x_ND)});
  return runs;
}

Tensor recur(const Run& run, const ops::LinearRecurrence& in, int64_t chunk, size_t slot) {
  if (run.kernels) {
    Tensor state = run.row != nullptr
                       ? run.row->fixed_in_place(slot)
                       : at::zeros({in.v_BTHV.size(2), in.q_BTHK.size(3), in.v_BTHV.size(3)});
    return ops::linear_recurrence_scan(in, state);
  }
  if (run.row == nullptr) return ops::linear_recurrence(in, chunk).first;
  const Tensor before = run.row->fixed(slot);
  const auto [y, after] = run.t == 1 ? ops::linear_recurrence_recurrent(in, before.unsqueeze(0))
                                     : ops::linear_recurrence(in, chunk, before.unsqueeze(0));
  run.row->fixed(slot) = after.squeeze(0).to(before.scalar_type());
  return y;
}

Tensor ShortConv::operator()(const Run& run, const Tensor& x_BTC, size_t slot) const {
  const int64_t kept = weight->size(1) - 1;
  const Tensor b = bias ? bias->tensor() : Tensor();
  if (run.kernels) {
    Tensor tail =
        run.row != nullptr ? run.row->fixed_in_place(slot) : at::zeros({kept, x_BTC.size(2)});
    return ops::causal_conv_kernel(x_BTC.squeeze(0), weight->tensor(), b, tail, act).unsqueeze(0);
  }
  Tensor tail;
  if (run.row != nullptr) {
    tail = run.row->fixed(slot);
    const Tensor seen = at::cat({tail.to(x_BTC.scalar_type()), x_BTC.squeeze(0)});
    run.row->fixed(slot) = seen.narrow(0, run.t, kept).to(tail.scalar_type()).clone();
    tail = tail.unsqueeze(0);
  }
  return ops::activate(ops::causal_conv(x_BTC, weight->tensor(), b, tail), act);
}

Tensor token_before(const Run& run, const Tensor& x_BTD, size_t slot) {
  if (run.row == nullptr || run.t == 0)
    return at::constant_pad_nd(x_BTD, {0, 0, 1, 0}).narrow(1, 0, run.t);
  const Tensor last = run.row->fixed(slot);
  // a view would keep the activations of the whole call alive
  run.row->fixed(slot) = x_BTD.select(1, run.t - 1).squeeze(0).to(last.scalar_type()).clone();
  const Tensor first = last.to(x_BTD.scalar_type()).reshape({1, 1, -1});
  return at::cat({first, x_BTD.narrow(1, 0, run.t - 1)}, 1);
}

Tensor l2_norm(const Tensor& x, double eps) {
  const auto width = static_cast<double>(x.size(-1));
  return ops::rms_norm(x, Tensor(), 0, eps / width) * (1 / std::sqrt(width));
}

}  // namespace tessera::nn
