#include "tessera/ops/dft.h"

#include <ATen/ops/fft_fft.h>
#include <ATen/ops/fft_fft2.h>
#include <ATen/ops/fft_rfft.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/base/threads.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y [B, T, D] of the first half of its channels, in any layout: those of a real input's transform
// are conjugates, Re y[t, D - d] = Re y[-t, d].
template <class Float>
void mirror(const Tensor& half_BTC, const Tensor& y_BTD) {
  constexpr int64_t kRows = 16;
  const int64_t t = y_BTD.size(1), d = y_BTD.size(2), given = half_BTC.size(2),
                blocks = (t + kRows - 1) / kRows;
  const auto strides = half_BTC.strides();
  const auto* from = half_BTC.const_data_ptr<Float>();
  auto* to = y_BTD.data_ptr<Float>();
  parallel_for(y_BTD.size(0) * blocks, 1 + (int64_t{1} << 15) / (kRows * d),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const Float* x = from + i / blocks * strides[0];
                   Float* y = to + i / blocks * t * d;
                   const int64_t first = i % blocks * kRows, last = std::min(t, first + kRows);
                   for (int64_t c = 0; c < given; ++c) {
                     const Float* column = x + c * strides[2];
                     for (int64_t r = first; r < last; ++r) y[r * d + c] = column[r * strides[1]];
                     if (d - c < given || c == 0) continue;
                     for (int64_t r = first; r < last; ++r)
                       y[(r == 0 ? 0 : t - r) * d + d - c] = column[r * strides[1]];
                   }
                 }
               });
}

Tensor transform(const Tensor& x_TD) {
  if (!x_TD.device().is_cpu()) return at::real(at::fft_fft2(x_TD));
  const Tensor x_BTD = x_TD.dim() == 2 ? x_TD.unsqueeze(0) : x_TD;
  const Tensor half_BTC = at::real(at::fft_fft(at::fft_rfft(x_BTD), {}, /*dim=*/1));
  const Tensor y_BTD = at::empty(x_BTD.sizes(), x_TD.options());
  if (x_TD.scalar_type() == at::kDouble)
    mirror<double>(half_BTC, y_BTD);
  else
    mirror<float>(half_BTC, y_BTD);
  return y_BTD.view(x_TD.sizes());
}

struct RealDft : torch::autograd::Function<RealDft> {
  static Tensor forward(AutogradContext*, const Tensor& x_TD) { return transform(x_TD); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {apply(gradients[0])};
  }
};

}  // namespace

Tensor real_dft(const Tensor& x_TD) {
  return RealDft::apply(x_TD);
}

}  // namespace tessera::ops
