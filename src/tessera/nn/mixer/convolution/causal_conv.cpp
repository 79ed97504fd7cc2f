#include "tessera/nn/mixer/convolution/causal_conv.h"

#include "tessera/kernels/convolution/short_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/convolution/short_conv.h"
#include "tessera/ops/form.h"

namespace tessera::nn {

CausalConv::CausalConv(const Builder& builder, const std::string& name, kernels::Activation act)
    : weight_(builder.weight(name + ".weight")),
      bias_(builder.optional(name + ".bias")),
      act_(act) {}

CausalConv::Step::Step(const CausalConv& conv, StepWeights& weights)
    : weight_(weights.numbers(conv.weight_)),
      bias_(weights.numbers(conv.bias_)),
      act_(conv.act_),
      channels_(conv.weight_->size(0)),
      taps_(conv.weight_->size(1)) {}

void CausalConv::Step::operator()(const float* x, float* tail, float* y) const {
  kernels::CausalConv conv;
  conv.T = 1, conv.C = channels_, conv.K = taps_;
  conv.x = x, conv.w = weight_.data(), conv.bias = bias_.data(), conv.tail = tail;
  conv.activation = act_;
  conv.y = y;
  kernels::causal_conv1d(conv);
}

Tensor CausalConv::operator()(const Tensor& x_NC,
                              const Batch& batch,
                              const StateRows* rows,
                              size_t slot) const {
  const Tensor w = weight_->tensor(), b = bias_ ? bias_->tensor() : Tensor();
  const int64_t kept = w.size(1) - 1;
  const BySegment part(batch);
  if (ops::kernel_serves(ops::Op::short_conv, x_NC))
    return over_segments(batch, true, [&](size_t i, const Segment&) {
      Tensor tail = rows != nullptr ? (*rows)[i]->fixed_in_place(slot)
                                    : at::zeros({kept, x_NC.size(1)}, x_NC.options());
      return ops::causal_conv_kernel(part(x_NC, i), w, b, tail, act_);
    });
  if (rows == nullptr) return ops::short_conv(x_NC, w, b, act_, lengths_of(batch));
  return over_segments(batch, [&](size_t i, const Segment&) {
    Tensor& tail = (*rows)[i]->fixed(slot);
    const Tensor x = part(x_NC, i);
    const Tensor y = ops::causal_conv(x.unsqueeze(0), w, b, tail.unsqueeze(0)).squeeze(0);
    const Tensor seen = at::cat({tail.to(x.scalar_type()), x});
    tail = seen.narrow(0, seen.size(0) - kept, kept).to(tail.scalar_type());
    return ops::activate(y, act_);
  });
}

}  // namespace tessera::nn
