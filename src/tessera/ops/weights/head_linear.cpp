#include "tessera/ops/weights/head_linear.h"

#include "tessera/kernels/weights/blocks.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"
#include "tessera/ops/weights/product_input.h"
#include "tessera/ops/weights/quantized_operands.h"

namespace tessera::ops {

Tensor head_linear(const Tensor& x_NHI,
                   const Weight& w,
                   const Weight* bias,
                   const ProductSettings& settings) {
  const int64_t n = x_NHI.size(0), heads = x_NHI.size(1), in = x_NHI.size(2);
  require(w.size(1) == in && w.size(0) % heads == 0, "head_linear",
          "{}: {} heads of {} channels meet a weight [{}, {}]", w.name(), heads, in, w.size(0),
          w.size(1));
  const int64_t out = w.size(0) / heads;
  check_reads_no_rows(w);
  if (w.parts() != nullptr)
    return head_linear(x_NHI, Weight::dense(w.name(), w.tensor(settings)), bias, settings);
  if (kernel_serves(Op::head_product, x_NHI) && w.readable_by_kernels() &&
      kernels::can_dequantize(w.dtype())) {
    const Tensor x = x_NHI.stride(2) == 1 ? x_NHI : x_NHI.contiguous();
    const Tensor b = bias != nullptr ? bias->tensor().to(at::kFloat).contiguous() : Tensor();
    Tensor y = at::empty({n, heads, out}, x.options());
    const int64_t matrix_bytes = out * storage_bytes(w.dtype(), in);
    for (int64_t h = 0; h < heads; ++h)
      ProductInput(x.const_data_ptr<float>() + h * x.stride(1), n, in, x.stride(0), reading_of(w))
          .times(w.dtype(), static_cast<const char*>(w.data()) + h * matrix_bytes, out,
                 b.defined() ? b.const_data_ptr<float>() + h * out : nullptr,
                 y.data_ptr<float>() + h * out, heads * out);
    return y;
  }
  const auto type = widen_products(x_NHI) ? at::kFloat : x_NHI.scalar_type();
  const Tensor matrices = w.tensor().to(x_NHI.device(), type).reshape({heads, out, in});
  Tensor y = ops::einsum("nhi,hoi->nho", x_NHI.to(type), matrices);
  if (bias != nullptr) {
    const Tensor flat = y.flatten(1);
    y = (flat + over_rows(bias->tensor().to(flat.device(), type), flat)).reshape(y.sizes());
  }
  return y.to(x_NHI.scalar_type());
}

}  // namespace tessera::ops
