#include "tessera/nn/mixer/convolution/grouped_conv.h"

#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::nn {

GroupedConv::GroupedConv(const Builder& builder, int64_t groups)
    : weight_(builder.weight("weight")),
      bias_(builder.optional("bias")),
      groups_(groups),
      kernel_(weight_->size(2)) {}

Tensor GroupedConv::operator()(const Tensor& x_ND,
                               const Context& context,
                               const StateRows* rows) const {
  const int64_t left = context.causal ? kernel_ - 1 : kernel_ / 2;
  std::vector<Tensor> out;
  const BySegment part(*context.batch);
  for (size_t i = 0; i < context.batch->segments.size(); ++i) {
    const Segment& s = context.batch->segments[i];
    std::vector<Tensor> parts;  // what came before, and the call's own
    if (s.start > 0 && kernel_ > 1) {
      require(rows != nullptr, "convolution", "a document that starts at position {}", s.start);
      parts = (*rows)[i]->tokens(0).spans(std::max<int64_t>(s.start - left, 0), s.start);
    }
    parts.push_back(part(x_ND, i));
    if (rows != nullptr && kernel_ > 1) {
      TokenBuffer& inputs = (*rows)[i]->tokens(0);
      parts.back() = inputs.stored(parts.back());
      inputs.append(parts.back());
    }
    const int64_t before = std::min(s.start, left);
    // zeros on both sides, so that there is one window of `kernel` rows per token
    const Tensor padded = at::constant_pad_nd(at::cat(parts).to(x_ND.scalar_type()),
                                              {0, 0, left - before, kernel_ - 1 - left});
    const ops::Form form = ops::form_of(ops::Op::grouped_conv, padded);
    out.push_back(form == ops::Form::kernel     ? by_rows(padded)
                  : form == ops::Form::learning ? by_taps(padded)
                                                : plain(padded));
  }
  if (out.empty()) return x_ND;
  const Tensor sums = at::cat(out);
  return bias_ == nullptr
             ? sums
             : sums + ops::over_rows(bias_->tensor().to(x_ND.scalar_type()), sums);
}

Tensor GroupedConv::plain(const Tensor& padded) const {
  const auto type = ops::widen_products(padded) ? at::kFloat : padded.scalar_type();
  const std::vector<int64_t> one{1}, none{0};
  const Tensor y_1DT = at::conv1d(padded.to(type).t().unsqueeze(0), weight_->tensor().to(type), {},
                                  one, none, one, groups_);
  return y_1DT.squeeze(0).t().to(padded.scalar_type());
}

/// As one product for every tap, whose gradients do not turn on the number of threads.
Tensor GroupedConv::by_taps(const Tensor& padded) const {
  const int64_t g = groups_, width = padded.size(1), t = padded.size(0) - kernel_ + 1;
  const Tensor x_GPI = padded.reshape({-1, g, width / g}).transpose(0, 1);
  const Tensor weight_GOIK = weight_->tensor().reshape({g, width / g, width / g, kernel_});
  Tensor y_GTO;
  for (int64_t tap = 0; tap < kernel_; ++tap) {
    const Tensor one =
        ops::product(x_GPI.narrow(1, tap, t), weight_GOIK.select(3, tap).transpose(1, 2));
    y_GTO = tap == 0 ? one : y_GTO + one;
  }
  return y_GTO.transpose(0, 1).reshape({t, width});
}

/// As products of windows and weights, batch-invariant, a few tokens at a time.
Tensor GroupedConv::by_rows(const Tensor& padded) const {
  constexpr int64_t kTokens = 64;
  const int64_t g = groups_, width = padded.size(1), k = kernel_;
  const Tensor weight_GOI = weight_->tensor().to(at::kFloat).reshape({g, width / g, width / g * k});
  const Tensor windows_TDK = padded.unfold(0, k, 1);
  const int64_t t = windows_TDK.size(0);
  std::vector<Tensor> out;
  for (int64_t begin = 0; begin < t; begin += kTokens) {
    const int64_t n = std::min(kTokens, t - begin);
    const Tensor windows_GTI =
        windows_TDK.narrow(0, begin, n).reshape({n, g, width / g * k}).transpose(0, 1);
    out.push_back(ops::row_products(windows_GTI, weight_GOI).transpose(0, 1).reshape({n, width}));
  }
  return at::cat(out);
}

}  // namespace tessera::nn
