#include "tessera/ops/basic/cuda_fused.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "tessera/cuda/kernels.h"
#include "tessera/ops/basic/rotation_function.h"
#include "tessera/ops/cuda_stream.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// rows that a warp computes; longer ones take a block
constexpr int64_t kShortRow = 256;

template <template <int> class Kernel>
void launch_norm(const typename Kernel<32>::Arguments& in, const cuda::Stream& stream) {
  using Short = Kernel<32>;
  using Long = Kernel<256>;
  if (in.d <= kShortRow)
    cuda::launch<Short>({cuda::blocks_of(in.rows, Short::kRows)}, in, stream);
  else
    cuda::launch<Long>({cuda::blocks_of(in.rows, Long::kRows)}, in, stream);
}

const float* numbers_or_null(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

struct CudaRmsNorm : torch::autograd::Function<CudaRmsNorm> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& x_in,
                        const std::optional<Tensor>& weight,
                        double offset,
                        double eps) {
    const Tensor x = x_in.contiguous(), w = weight ? weight->contiguous() : Tensor();
    const int64_t d = x.size(-1), rows = x.numel() / d;
    const Tensor y = at::empty_like(x), r = at::empty({rows}, x.options());
    launch_norm<cuda::RmsNorm>(
        {x.const_data_ptr<float>(), numbers_or_null(w), y.mutable_data_ptr<float>(),
         r.mutable_data_ptr<float>(), rows, d, static_cast<float>(offset), static_cast<float>(eps)},
        stream_of(x));
    context->save_for_backward({x, w, r});
    context->saved_data["offset"] = offset;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &w = saved[1], &r = saved[2], dy = gradients[0].contiguous();
    const auto offset = static_cast<float>(context->saved_data["offset"].toDouble());
    const int64_t d = x.size(-1), rows = r.numel();
    const cuda::Stream stream = stream_of(x);
    Tensor dx, dw;
    if (context->needs_input_grad(0)) {
      dx = at::empty_like(x);
      launch_norm<cuda::RmsNormInputGradient>(
          {x.const_data_ptr<float>(), numbers_or_null(w), r.const_data_ptr<float>(),
           dy.const_data_ptr<float>(), dx.mutable_data_ptr<float>(), rows, d, offset},
          stream);
    }
    // given tensors alone are counted
    if (w.defined() && context->needs_input_grad(1)) {
      using Kernel = cuda::RmsNormWeightGradient;
      const int64_t parts = cuda::blocks_of(rows, Kernel::kRows);
      const Tensor sums = at::empty({parts, d}, x.options());
      cuda::launch<Kernel>({parts, cuda::blocks_of(d, Kernel::kThreads)},
                           {x.const_data_ptr<float>(), r.const_data_ptr<float>(),
                            dy.const_data_ptr<float>(), sums.mutable_data_ptr<float>(), rows, d},
                           stream);
      dw = sums.sum(0);
    }
    return {dx, dw, Tensor(), Tensor()};
  }
};

struct CudaRotation {
  static Tensor rotated(
      const Tensor& x_in, const Tensor& cos, const Tensor& sin, bool interleaved, bool back) {
    const Tensor x = x_in.contiguous(), y = at::empty_like(x);
    const int64_t tokens = x.size(0), heads = x.size(1), d = x.size(2), pairs = cos.size(1);
    cuda::launch<cuda::Rope>(
        {cuda::blocks_of(tokens * cuda::Rope::work(heads, d, pairs), cuda::Rope::kThreads)},
        {x.const_data_ptr<float>(), cos.const_data_ptr<float>(), sin.const_data_ptr<float>(),
         y.mutable_data_ptr<float>(), tokens, heads, d, pairs, interleaved, back},
        stream_of(x));
    return y;
  }
};

struct CudaSwiGlu : torch::autograd::Function<CudaSwiGlu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const Tensor g = gate.contiguous(), u = up.contiguous(), y = at::empty_like(g);
    using Kernel = cuda::SwiGlu;
    cuda::launch<Kernel>({cuda::blocks_of(g.numel(), Kernel::kEach * Kernel::kThreads)},
                         {g.const_data_ptr<float>(), u.const_data_ptr<float>(),
                          y.mutable_data_ptr<float>(), g.numel()},
                         stream_of(g));
    context->save_for_backward({g, u});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &g = saved[0], &u = saved[1], dy = gradients[0].contiguous();
    const Tensor dg = at::empty_like(g), du = at::empty_like(u);
    using Kernel = cuda::SwiGluGradient;
    cuda::launch<Kernel>(
        {cuda::blocks_of(g.numel(), Kernel::kEach * Kernel::kThreads)},
        {g.const_data_ptr<float>(), u.const_data_ptr<float>(), dy.const_data_ptr<float>(),
         dg.mutable_data_ptr<float>(), du.mutable_data_ptr<float>(), g.numel()},
        stream_of(g));
    return {dg, du};
  }
};

}  // namespace

Tensor cuda_rms_norm(const Tensor& x, const Tensor& weight, double offset, double eps) {
  return CudaRmsNorm::apply(x, weight.defined() ? std::optional<Tensor>(weight) : std::nullopt,
                            offset, eps);
}

Tensor cuda_rope(const Tensor& x_NHD, const RotaryTable& table, bool interleaved) {
  return rotated_by<CudaRotation>(x_NHD, table, interleaved);
}

Tensor cuda_swiglu(const Tensor& gate, const Tensor& up) {
  return CudaSwiGlu::apply(gate, up);
}

}  // namespace tessera::ops
