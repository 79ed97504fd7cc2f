// What the mixers with a linear recurrence share when they compute: runs of documents, and the
// recurrence with and without a state.
#pragma once

#include <memory>

#include "tessera/nn/parts.h"
#include "tessera/ops/form.h"
#include "tessera/ops/linear/linear_recurrence.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/side_by_side.h"

namespace tessera::nn {

/// Documents that are computed at once: all B of a call when they have one length T; all of
/// different lengths as one row of T tokens; or one segment, which may continue a row of a state.
struct Run {
  int64_t b = 1, t = 0;
  ops::Lengths documents = {};  // of the T tokens, where they are several
  /// Where it is one of several: all of them, and its number.
  std::shared_ptr<const ops::Cuts> cuts = nullptr;
  size_t index = 0;
  RowState* row = nullptr;
  bool kernels = false;  // batch-invariant; only where the layer's input allows, and then B = 1

  /// Its tokens of x_N... as [B, T, tail...].
  Tensor of(const Tensor& x, std::initializer_list<int64_t> tail) const;
};

/// The runs of a call. The kernels take one segment at a time.
std::vector<Run> runs_of(const Tensor& x_ND, const Context& context, const StateRows* rows);

/// f(run) gives [B, T, ...]; all of them, one after another, as [N, C]. The kernels take many runs
/// in one parallel region: f must write nothing but the state of its row.
template <class F>
Tensor for_runs(const Tensor& x_ND, const Context& context, const StateRows* rows, const F& f) {
  const std::vector<Run> runs = runs_of(x_ND, context, rows);
  std::vector<Tensor> ys(runs.size());
  const auto compute = [&](size_t i) {
    const Run& run = runs[i];
    const Tensor y = f(run);
    int64_t width = 1;
    for (int64_t axis = 2; axis < y.dim(); ++axis) width *= y.size(axis);
    ys[i] = y.reshape({run.b * run.t, width});
  };
  if (ops::documents_apart(x_ND)) {
    std::vector<int64_t> tokens;
    for (const Run& run : runs) tokens.push_back(run.t);
    ops::side_by_side(tokens, compute);
  } else {
    for (size_t i = 0; i < runs.size(); ++i) compute(i);
  }
  return ys.size() == 1 ? ys[0] : at::cat(ys);
}

/// y_BTHV of the recurrence from the state declared at `slot` (or from zeros), which is replaced.
Tensor recur(const Run& run, ops::LinearRecurrence in, int64_t chunk, size_t slot);

}  // namespace tessera::nn
