#include "tessera/ops/attention/attention_merge.h"

#include <limits>

namespace tessera::ops {

PartialAttention attention_merge(const PartialAttention& a, const PartialAttention& b) {
  const auto type = wide(a.out);
  const Tensor la = a.lse.to(type), lb = b.lse.to(type);
  // L = logaddexp(La, Lb), with (-inf) - (-inf) kept out of values and gradients
  const Tensor top = at::maximum(la, lb).detach();
  const Tensor none = top == -std::numeric_limits<double>::infinity();
  const Tensor shift = top.masked_fill(none, 0);
  const Tensor ea = at::exp(la - shift), eb = at::exp(lb - shift);
  const Tensor sum = (ea + eb).masked_fill(none, 1);
  const auto share = [&](const Tensor& e) { return (e / sum).unsqueeze(-1); };
  const Tensor out = a.out.to(type) * share(ea) + b.out.to(type) * share(eb);
  const Tensor lse =
      (shift + at::log(sum)).masked_fill(none, -std::numeric_limits<double>::infinity());
  return {out.to(a.out.scalar_type()), lse};
}

}  // namespace tessera::ops
