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

/// Calls f(first token, tokens, rows) for runs of documents of one length that can be seen as
/// [rows, tokens, ...], and joins its results [rows * tokens, ...] in order: one call when all are
/// equally long, else one a document.
template <class F>
Tensor over_documents(const Lengths& lengths, const F& f) {
  if (lengths.empty()) return f(int64_t{0}, int64_t{0}, int64_t{1});
  if (equal(lengths)) return f(int64_t{0}, lengths.front(), static_cast<int64_t>(lengths.size()));
  std::vector<Tensor> out;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    out.push_back(f(first, length, int64_t{1}));
    first += length;
  }
  return at::cat(out);
}

/// Rows of x_N* from `first` on as [rows, tokens, ...].
inline Tensor as_rows(const Tensor& x, int64_t first, int64_t tokens, int64_t rows) {
  auto sizes = x.sizes().vec();
  sizes[0] = tokens;
  sizes.insert(sizes.begin(), rows);
  return x.narrow(0, first, rows * tokens).reshape(sizes);
}

/// Where each document begins, and N.
inline std::vector<int64_t> offsets_of(const Lengths& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

}  // namespace tessera::ops
