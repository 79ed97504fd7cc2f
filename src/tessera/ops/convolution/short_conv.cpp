#include "tessera/ops/convolution/short_conv.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/convolution/short_conv.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/channel_groups.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Convolution and activation in one pass each way; the backward pass computes what it needs again.
struct ShortConv : torch::autograd::Function<ShortConv> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_in,
                        const Tensor& w_in,
                        const Tensor& b_in,
                        int64_t act,
                        const Lengths& lengths) {
    const Tensor x = x_in.contiguous(), w = w_in.contiguous(), b = b_in.contiguous();
    const int64_t c = x.size(1), k = w.size(1);
    Tensor y = at::empty_like(x);
    int64_t first = 0;
    for (const int64_t length : lengths) {
      std::vector<float> tail(static_cast<size_t>((k - 1) * c), 0.0f);
      kernels::causal_conv1d({length, c, k, x.const_data_ptr<float>() + first * c,
                              w.const_data_ptr<float>(), b.const_data_ptr<float>(), tail.data(),
                              static_cast<kernels::Activation>(act),
                              y.data_ptr<float>() + first * c});
      first += length;
    }
    context->save_for_backward({x, w, b});
    context->saved_data["act"] = act;
    context->saved_data["lengths"] = lengths;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &b = saved[2], dy = gradients[0].contiguous();
    const Tensor taps = saved[1].t().contiguous();
    const auto offsets = offsets_of(context->saved_data["lengths"].toIntVector());
    const int64_t c = x.size(1), k = taps.size(0);
    Tensor dx = at::empty_like(x), dtaps = at::zeros_like(taps), db = at::zeros_like(b);
    kernels::CausalConvGradient whole{
        0,
        c,
        k,
        x.const_data_ptr<float>(),
        taps.const_data_ptr<float>(),
        b.const_data_ptr<float>(),
        static_cast<kernels::Activation>(context->saved_data["act"].toInt()),
        dy.const_data_ptr<float>(),
        dx.data_ptr<float>(),
        dtaps.data_ptr<float>(),
        db.data_ptr<float>()};
    for_channel_groups(c, offsets.size() - 1, [&](size_t i, int64_t begin, int64_t end) {
      auto g = whole;
      g.T = offsets[i + 1] - offsets[i];
      g.x += offsets[i] * c;
      g.dy += offsets[i] * c;
      g.dx += offsets[i] * c;
      kernels::causal_conv1d_backward(g, begin, end);
    });
    return {dx, dtaps.t(), db, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor causal_conv(const Tensor& x_BTC,
                   const Tensor& w_CK,
                   const Tensor& b_C,
                   const Tensor& tail_BKC) {
  const int64_t t = x_BTC.size(1), k = w_CK.size(1);
  const Tensor padded = tail_BKC.defined() ? at::cat({tail_BKC.to(x_BTC.scalar_type()), x_BTC}, 1)
                                           : at::constant_pad_nd(x_BTC, {0, 0, k - 1, 0});
  const auto type = wide(x_BTC);
  Tensor y;
  for (int64_t j = 0; j < k; ++j) {
    const Tensor term = padded.narrow(1, j, t).to(type) * w_CK.select(1, j).to(type);
    y = y.defined() ? y + term : term;
  }
  if (b_C.defined()) y = y + b_C.to(type);
  return y.to(x_BTC.scalar_type());
}

Tensor causal_conv_kernel(const Tensor& x_TC,
                          const Tensor& w_CK,
                          const Tensor& b_C,
                          Tensor& tail_KC,
                          kernels::Activation act) {
  const Tensor x = x_TC.contiguous(), w = w_CK.to(at::kFloat).contiguous(),
               b = b_C.defined() ? b_C.to(at::kFloat).contiguous() : Tensor();
  Tensor y = at::empty_like(x);
  kernels::CausalConv conv;
  conv.T = x.size(0), conv.C = x.size(1), conv.K = w.size(1);
  conv.x = x.const_data_ptr<float>();
  conv.w = w.const_data_ptr<float>();
  conv.bias = b.defined() ? b.const_data_ptr<float>() : nullptr;
  conv.tail = tail_KC.data_ptr<float>();
  conv.activation = act;
  conv.y = y.data_ptr<float>();
  kernels::causal_conv1d(conv);
  return y;
}

Tensor short_conv(const Tensor& x_TC,
                  const Tensor& w_CK,
                  const Tensor& b_C,
                  kernels::Activation act,
                  const Lengths& lengths) {
  const bool known = act == kernels::Activation::identity || act == kernels::Activation::silu;
  if (on_cpu(form_of(Op::short_conv, x_TC)) && known && w_CK.size(1) <= 64) {
    const auto as_float = [](const Tensor& t) { return t.to(at::kFloat); };
    const Tensor b = b_C.defined() ? b_C : at::zeros({x_TC.size(1)}, x_TC.options());
    return ShortConv::apply(as_float(x_TC), as_float(w_CK), as_float(b), static_cast<int64_t>(act),
                            lengths)
        .to(x_TC.scalar_type());
  }
  return over_documents(lengths, [&](const auto& rows_of) {
    return activate(causal_conv(rows_of(x_TC), w_CK, b_C), act).flatten(0, 1);
  });
}

}  // namespace tessera::ops
