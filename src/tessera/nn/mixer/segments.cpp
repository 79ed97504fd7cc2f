#include "tessera/nn/mixer/segments.h"

#include "tessera/ops/form.h"

namespace tessera::nn {

Tensor token_shift(const Tensor& x_ND, const Batch& batch, const StateRows* rows, size_t slot) {
  if (x_ND.size(0) == 0) return x_ND;
  if (rows == nullptr) {
    std::vector<int64_t> first;
    for (const Segment& s : batch.segments)
      if (s.length > 0) first.push_back(s.begin);
    const Tensor shifted = at::cat({x_ND.narrow(0, 0, 1), x_ND.narrow(0, 0, x_ND.size(0) - 1)});
    return shifted.index_fill(0, at::tensor(first, at::kLong).to(x_ND.device()), 0);
  }
  const BySegment part(batch);
  return over_segments(batch, ops::documents_apart(x_ND), [&](size_t i, const Segment& s) {
    const Tensor x = part(x_ND, i);
    Tensor& last = (*rows)[i]->fixed(slot);
    const Tensor seen = at::cat({last.to(x.scalar_type()).unsqueeze(0), x});
    // a view would keep the activations of the whole call alive
    last = seen.select(0, s.length).to(last.scalar_type()).clone();
    return seen.narrow(0, 0, s.length);
  });
}

}  // namespace tessera::nn
