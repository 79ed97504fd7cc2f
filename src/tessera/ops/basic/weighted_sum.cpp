#include "tessera/ops/basic/weighted_sum.h"

#include "tessera/kernels/basic/weighted_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {

Tensor weighted_sum(const Tensor& a_MN, const Tensor& v_NC) {
  if (!kernel_serves(Op::weighted_sum, v_NC)) return ops::product(a_MN, v_NC);
  const Tensor a = a_MN.stride(1) == 1 ? a_MN : a_MN.contiguous(),
               v = v_NC.stride(1) == 1 ? v_NC : v_NC.contiguous();
  Tensor y = at::empty({a.size(0), v.size(1)}, v.options());
  kernels::weighted_sum({a.size(0), a.size(1), v.size(1), a.const_data_ptr<float>(), a.stride(0),
                         v.const_data_ptr<float>(), v.stride(0), y.data_ptr<float>(), v.size(1)});
  return y;
}

}  // namespace tessera::ops
