#include "tessera/ops/transform/dft.h"

#include <ATen/ops/fft_fft.h>
#include <ATen/ops/fft_fft2.h>
#include <ATen/ops/fft_rfft.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// times and channels of a tile that is transposed in the first cache level
constexpr int64_t kTile = 32;

int64_t grain(int64_t numbers) {
  return 1 + (int64_t{1} << 15) / numbers;
}

// [B, T, D] -> [B, D, T]
template <class Float>
void transpose(const Tensor& x_BTD, const Tensor& y_BDT) {
  const int64_t t = x_BTD.size(1), d = x_BTD.size(2), blocks = (t + kTile - 1) / kTile;
  const auto* from = x_BTD.const_data_ptr<Float>();
  auto* to = y_BDT.data_ptr<Float>();
  parallel_for(x_BTD.size(0) * blocks, grain(kTile * d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i / blocks * t * d, first = i % blocks * kTile,
                    last = std::min(t, first + kTile);
      for (int64_t c = 0; c < d; c += kTile)
        for (int64_t column = c; column < std::min(d, c + kTile); ++column)
          for (int64_t r = first; r < last; ++r)
            to[at + column * t + r] = from[at + r * d + column];
    }
  });
}

// y [B, T, D] of the first half of its times, [B, D, T / 2 + 1] in any layout: the others of a real
// input's transform are their conjugates, Re y[T - t, D - d] = Re y[t, d].
template <class Float>
void mirror(const Tensor& half_BDT, const Tensor& y_BTD) {
  const int64_t t = y_BTD.size(1), d = y_BTD.size(2), given = half_BDT.size(2);
  const auto strides = half_BDT.strides();
  const auto* from = half_BDT.const_data_ptr<Float>();
  auto* to = y_BTD.data_ptr<Float>();
  parallel_for(y_BTD.size(0) * given, grain(d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i % given;
      const Float* x = from + i / given * strides[0] + r * strides[2];
      Float *y = to + i / given * t * d, *row = y + r * d;
      for (int64_t c = 0; c < d; ++c) row[c] = x[c * strides[1]];
      if (r == 0 || t - r < given) continue;
      Float* mirrored = y + (t - r) * d;
      mirrored[0] = row[0];
      std::reverse_copy(row + 1, row + d, mirrored + 1);
    }
  });
}

template <class Float>
Tensor transform_as(const Tensor& x_BTD) {
  // each axis is transformed where its numbers lie together, in memory that is aligned whatever x
  // is: the same numbers have the same bits
  const Tensor turned_BDT =
      at::empty({x_BTD.size(0), x_BTD.size(2), x_BTD.size(1)}, x_BTD.options());
  transpose<Float>(x_BTD, turned_BDT);
  const Tensor half_BDT = at::real(at::fft_fft(at::fft_rfft(turned_BDT), {}, /*dim=*/1));
  Tensor y_BTD = at::empty(x_BTD.sizes(), x_BTD.options());
  mirror<Float>(half_BDT, y_BTD);
  return y_BTD;
}

Tensor transform(const Tensor& x_TD) {
  if (!on_cpu(form_of(Op::real_dft, x_TD))) return at::real(at::fft_fft2(x_TD));
  const Tensor x_BTD = (x_TD.dim() == 2 ? x_TD.unsqueeze(0) : x_TD).contiguous();
  const Tensor y_BTD =
      x_TD.scalar_type() == at::kDouble ? transform_as<double>(x_BTD) : transform_as<float>(x_BTD);
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
