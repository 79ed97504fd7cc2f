// Ops over documents that lie one after another, [N, ...]: how the plain forms see them as rows of
// equal length where they are, and one by one where they are not.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Tokens of every document, in order; they add up to N.
using Lengths = std::vector<int64_t>;

inline bool equal(const Lengths& lengths) {
  return std::all_of(lengths.begin(), lengths.end(),
                     [&](int64_t length) { return length == lengths.front(); });
}

/// Pieces of tensors [N, ...], one for each document. A tensor is cut once into all of its pieces:
/// the gradient of a single piece would be as long as the whole.
class Cuts {
 public:
  explicit Cuts(Lengths lengths) : lengths_(std::move(lengths)), begins_(lengths_.size(), 0) {
    for (size_t i = 1; i < lengths_.size(); ++i) begins_[i] = begins_[i - 1] + lengths_[i - 1];
  }

  /// The tokens of document `i` of x. One tensor is the same in several calls. Without gradients
  /// several threads may ask.
  Tensor operator()(const Tensor& x, size_t i) const {
    if (lengths_.size() == 1 && x.size(0) == lengths_[0]) return x;
    if (lengths_.size() == 1 || !at::GradMode::is_enabled())
      return x.narrow(0, begins_[i], lengths_[i]);
    for (const auto& [whole, pieces] : cut_)
      if (whole.is_same(x)) return pieces[i];
    cut_.emplace_back(x, x.split_with_sizes(lengths_));
    return cut_.back().second[i];
  }

 private:
  Lengths lengths_, begins_;
  mutable std::vector<std::pair<Tensor, std::vector<Tensor>>> cut_;
};

/// Calls f(rows_of) for runs of documents of one length, where rows_of(x) is what they have of x
/// [N, ...] as [rows, tokens, ...], and joins its results [rows * tokens, ...] in order: one call
/// when all are equally long, else one a document.
template <class F>
Tensor over_documents(const Lengths& lengths, const F& f) {
  if (lengths.empty() || equal(lengths))
    return f([&](const Tensor& x) {
      auto sizes = x.sizes().vec();
      sizes[0] = lengths.empty() ? 0 : lengths.front();
      sizes.insert(sizes.begin(), std::max<int64_t>(1, static_cast<int64_t>(lengths.size())));
      return x.reshape(sizes);
    });
  const Cuts cuts(lengths);
  std::vector<Tensor> out;
  for (size_t i = 0; i < lengths.size(); ++i)
    out.push_back(f([&](const Tensor& x) { return cuts(x, i).unsqueeze(0); }));
  return at::cat(out);
}

/// Where each document begins, and N.
inline std::vector<int64_t> offsets_of(const Lengths& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

}  // namespace tessera::ops
