#include "tessera/ops/block_linear.h"

#include "tessera/kernels/blocks.h"
#include "tessera/kernels/matmul.h"

namespace tessera::ops {

Tensor block_linear(const Tensor& x, const Weight& w, const Weight* bias) {
  const int64_t n = x.size(0), in = x.size(1), out = w.size(0), width = w.size(1);
  require(width > 0 && in % width == 0 && out % (in / width) == 0, "block_linear",
          "{}: input has {} channels, the weight [{}, {}]", w.name(), in, out, width);
  const int64_t blocks = in / width, block_out = out / blocks;
  const bool dense_on_cpu = !w.dense_tensor().defined() || (w.dense_tensor().device().is_cpu() &&
                                                            w.dense_tensor().is_contiguous());
  if (use_kernels(x) && dense_on_cpu && kernels::can_dequantize(w.dtype())) {
    const Tensor input = x.contiguous();
    Tensor y = at::empty({n, out}, x.options());
    const Tensor b = bias != nullptr ? bias->tensor().to(at::kFloat).contiguous() : Tensor();
    const int64_t block_bytes = block_out * storage_bytes(w.dtype(), width);
    for (int64_t h = 0; h < blocks; ++h)
      kernels::matmul(input.const_data_ptr<float>() + h * width, n, width, in, w.dtype(),
                      static_cast<const char*>(w.data()) + h * block_bytes, block_out,
                      b.defined() ? b.const_data_ptr<float>() + h * block_out : nullptr,
                      y.data_ptr<float>() + h * block_out, out);
    return y;
  }
  const auto type = widen_products(x) ? at::kFloat : x.scalar_type();
  const Tensor x_HNI = x.to(type).reshape({n, blocks, width}).transpose(0, 1);
  const Tensor w_HIO = w.tensor().to(x.device(), type).reshape({blocks, block_out, width});
  Tensor y = at::bmm(x_HNI, w_HIO.transpose(1, 2)).transpose(0, 1).reshape({n, out});
  if (bias != nullptr) y = y + bias->tensor().to(x.device(), type);
  return y.to(x.scalar_type());
}

}  // namespace tessera::ops
