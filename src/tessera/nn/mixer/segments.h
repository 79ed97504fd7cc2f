// How the recurrent mixers walk a ragged batch.
#pragma once

#include <utility>
#include <vector>

#include "tessera/nn/parts.h"

namespace tessera::nn {

/// Tokens of every segment: its documents, where a call has no state.
inline std::vector<int64_t> lengths_of(const Batch& batch) {
  std::vector<int64_t> lengths;
  for (const Segment& s : batch.segments) lengths.push_back(s.length);
  return lengths;
}

/// Pieces of tensors of all tokens. Each tensor is cut once into all of its segments: the gradient
/// of a piece by itself would be as long as the whole.
class BySegment {
 public:
  explicit BySegment(const Batch& batch) : lengths_(lengths_of(batch)) {}

  /// The tokens of segment `i` of x [N, ...].
  Tensor operator()(const Tensor& x, size_t i) const {
    if (lengths_.size() == 1) return x.narrow(0, 0, lengths_[0]);
    for (const auto& [whole, pieces] : cut_)
      if (whole.is_same(x)) return pieces[i];
    cut_.emplace_back(x, x.split_with_sizes(lengths_));
    return cut_.back().second[i];
  }

 private:
  std::vector<int64_t> lengths_;
  mutable std::vector<std::pair<Tensor, std::vector<Tensor>>> cut_;
};

/// f(index, segment) for every segment, its results [tokens, ...] joined.
template <class F>
Tensor over_segments(const Batch& batch, const F& f) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < batch.segments.size(); ++i) out.push_back(f(i, batch.segments[i]));
  return out.size() == 1 ? out[0] : at::cat(out);
}

/// The input before each token, zero before a document's first. `slot` is the place of the last
/// input, [D], in the state.
Tensor token_shift(const Tensor& x_ND, const Batch& batch, const StateRows* rows, size_t slot);

}  // namespace tessera::nn
