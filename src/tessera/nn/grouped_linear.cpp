#include "tessera/nn/grouped_linear.h"

#include "tessera/ops/basic/over_rows.h"

namespace tessera::nn {

Tensor GroupedLinear::by_groups(const Tensor& x_NI, const ops::ProductSettings& products) const {
  const auto type = ops::widen_products(x_NI) ? at::kFloat : x_NI.scalar_type();
  const int64_t g = groups, n = x_NI.size(0), out = weight->size(0), in = weight->size(1);
  const Tensor x_GNI = x_NI.to(type).reshape({n, g, in}).transpose(0, 1),
               w_GOI = weight->tensor(products).to(x_NI.device(), type).reshape({g, out / g, in});
  const Tensor y_NO = ops::row_products(x_GNI, w_GOI)
                          .transpose(0, 1)
                          .reshape({n, out})
                          .to(x_NI.scalar_type());
  return bias == nullptr ? y_NO
                         : y_NO + ops::over_rows(bias->tensor().to(y_NO.options()), y_NO);
}

}  // namespace tessera::nn
