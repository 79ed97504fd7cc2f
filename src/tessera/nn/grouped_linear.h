// The product that declare_grouped_linear declares (channel_groups.h).
#pragma once

#include "tessera/nn/parts.h"

namespace tessera::nn {

/// y_NO = W x_NI + b in groups of channels. With one group it is a Linear, experts included.
struct GroupedLinear : Linear {
  int64_t groups = 1;
  GroupedLinear() = default;
  GroupedLinear(const Builder& builder, const std::string& name, int64_t n_groups)
      : Linear(builder, name), groups(n_groups) {}
  template <class X>
  Tensor operator()(const X& x_NI, const Context& context) const {
    return groups == 1 ? Linear::operator()(x_NI, context) : by_groups(x_NI, context.products);
  }

 private:
  Tensor by_groups(const Tensor& x_NI, const ops::ProductSettings& products) const;
};

}  // namespace tessera::nn
