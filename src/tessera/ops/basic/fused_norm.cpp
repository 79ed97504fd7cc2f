#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "tessera/base/threads.h"
#include "tessera/ops/basic/fused.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// rows per partial sum of the weight's gradient: fixed, so that bits do not depend on the thread
// count
constexpr int64_t kRows = 64;

float sum_of_squares(const float* x, int64_t d) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < d; ++i) sum += x[i] * x[i];
  return sum;
}

/// y = x r (w + offset), r = 1 / sqrt(mean x^2 + eps).
void forward_row(const float* __restrict x,
                 const float* __restrict w,
                 float offset,
                 float r,
                 int64_t d,
                 float* __restrict y) {
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) y[i] = x[i] * r * (w[i] + offset);
}

/// With g = dy (w + offset): dx = r g - x r^3 / d sum(g x); dw += dy x r.
void backward_row(const float* __restrict x,
                  const float* __restrict dy,
                  const float* __restrict w,
                  float offset,
                  float r,
                  int64_t d,
                  float* __restrict dx,
                  float* __restrict dw) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < d; ++i) dot += dy[i] * (w[i] + offset) * x[i];
  const float along = dot * r * r * r / static_cast<float>(d);
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) {
    dx[i] = r * dy[i] * (w[i] + offset) - along * x[i];
    dw[i] += dy[i] * x[i] * r;
  }
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_in,
                        const Tensor& weight,
                        double offset,
                        double eps) {
    const Tensor x = x_in.contiguous();
    const int64_t d = x.size(-1), rows = d == 0 ? 0 : x.numel() / d;
    const Tensor w = weight.contiguous();
    Tensor y = at::empty_like(x), r = at::empty({rows}, x.options());
    const auto *from = x.const_data_ptr<float>(), *scale = w.const_data_ptr<float>();
    auto *to = y.data_ptr<float>(), *inverse = r.data_ptr<float>();
    parallel_for(rows, kRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        inverse[i] = 1 / std::sqrt(sum_of_squares(from + i * d, d) / static_cast<float>(d) +
                                   static_cast<float>(eps));
        forward_row(from + i * d, scale, static_cast<float>(offset), inverse[i], d, to + i * d);
      }
    });
    context->save_for_backward({x, w, r});
    context->saved_data["offset"] = offset;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], &r = saved[2], dy = gradients[0].contiguous();
    const auto offset = static_cast<float>(context->saved_data["offset"].toDouble());
    const int64_t d = x.size(-1), rows = r.numel(), chunks = (rows + kRows - 1) / kRows;
    Tensor dx = at::empty_like(x), dw = at::zeros({chunks, d}, x.options());
    const auto *x_data = x.const_data_ptr<float>(), *dy_data = dy.const_data_ptr<float>(),
               *inverse = r.const_data_ptr<float>();
    const float* scale = w.const_data_ptr<float>();
    auto *dx_data = dx.data_ptr<float>(), *dw_data = dw.data_ptr<float>();
    parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c)
        for (int64_t i = c * kRows; i < std::min(rows, (c + 1) * kRows); ++i)
          backward_row(x_data + i * d, dy_data + i * d, scale, offset, inverse[i], d,
                       dx_data + i * d, dw_data + c * d);
    });
    return {dx, ordered_sum(dw, {0}), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor fused_rms_norm(const Tensor& x, const Tensor& weight, double offset, double eps) {
  return RmsNorm::apply(x, weight, offset, eps);
}

}  // namespace tessera::ops
