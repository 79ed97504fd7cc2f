// How layers walk a ragged batch.
#pragma once

#include <vector>

#include "tessera/nn/parts.h"
#include "tessera/ops/documents.h"
#include "tessera/ops/side_by_side.h"

namespace tessera::nn {

/// Tokens of every segment: its documents, where a call has no state.
inline std::vector<int64_t> lengths_of(const Batch& batch) {
  std::vector<int64_t> lengths;
  for (const Segment& s : batch.segments) lengths.push_back(s.length);
  return lengths;
}

/// Pieces of tensors of all tokens, by segment.
struct BySegment : ops::Cuts {
  explicit BySegment(const Batch& batch) : ops::Cuts(lengths_of(batch)) {}
};

/// Tokens of every segment times those that they may see: what attention costs, up to a factor.
inline std::vector<int64_t> pairs_of(const Batch& batch) {
  std::vector<int64_t> pairs;
  for (const Segment& s : batch.segments) pairs.push_back(s.length * (s.start + s.length));
  return pairs;
}

/// f(index, segment) for every segment, its results [tokens, ...] joined.
template <class F>
Tensor over_segments(const Batch& batch, const F& f) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < batch.segments.size(); ++i) out.push_back(f(i, batch.segments[i]));
  return out.size() == 1 ? out[0] : at::cat(out);
}

/// The same, and where `kernels` compute without gradients in one parallel region: f then writes
/// nothing but the state of its row. costs: of each segment (ops::side_by_side).
template <class F>
Tensor over_segments(const Batch& batch,
                     bool kernels,
                     const std::vector<int64_t>& costs,
                     const F& f) {
  if (!kernels) return over_segments(batch, f);
  std::vector<Tensor> out(batch.segments.size());
  ops::side_by_side(costs, [&](size_t i) { out[i] = f(i, batch.segments[i]); });
  return out.size() == 1 ? out[0] : at::cat(out);
}

/// The same where a segment costs its tokens.
template <class F>
Tensor over_segments(const Batch& batch, bool kernels, const F& f) {
  return over_segments(batch, kernels, lengths_of(batch), f);
}

/// The input before each token, zero before a document's first. `slot` is the place of the last
/// input, [D], in the state.
Tensor token_shift(const Tensor& x_ND, const Batch& batch, const StateRows* rows, size_t slot);

}  // namespace tessera::nn
