#include "tessera/nn/mixer/linear/recurrence.h"

#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/form.h"

namespace tessera::nn {

Tensor Run::of(const Tensor& x, std::initializer_list<int64_t> tail) const {
  std::vector<int64_t> sizes{b, t};
  sizes.insert(sizes.end(), tail);
  return (cuts ? (*cuts)(x, index) : x).reshape(sizes);
}

std::vector<Run> runs_of(const Tensor& x_ND, const Context& context, const StateRows* rows) {
  const Batch& batch = *context.batch;
  const bool kernels = ops::documents_apart(x_ND);
  if (const int64_t t = batch.equal_length(); rows == nullptr && t > 0 && !kernels)
    return {{x_ND.size(0) / t, t}};
  if (rows == nullptr && batch.segments.size() > 1 && !kernels)
    return {{1, x_ND.size(0), lengths_of(batch)}};
  const auto cuts = std::make_shared<const BySegment>(batch);
  std::vector<Run> runs;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    Run run{1, batch.segments[i].length};
    run.cuts = cuts, run.index = i;
    run.row = rows != nullptr ? (*rows)[i] : nullptr;
    run.kernels = kernels;
    runs.push_back(run);
  }
  return runs;
}

Tensor recur(const Run& run, ops::LinearRecurrence in, int64_t chunk, size_t slot) {
  in.documents = run.documents;
  if (run.kernels) {
    Tensor state = run.row != nullptr
                       ? run.row->fixed_in_place(slot)
                       : at::zeros({in.v_BTHV.size(2), in.q_BTHK.size(3), in.v_BTHV.size(3)});
    return ops::linear_recurrence_scan(in, state);
  }
  if (run.row == nullptr) return ops::linear_recurrence_y(in, chunk);
  const Tensor before = run.row->fixed(slot);
  const auto [y, after] = run.t == 1 ? ops::linear_recurrence_recurrent(in, before.unsqueeze(0))
                                     : ops::linear_recurrence(in, chunk, before.unsqueeze(0));
  run.row->fixed(slot) = after.squeeze(0).to(before.scalar_type());
  return y;
}

}  // namespace tessera::nn
