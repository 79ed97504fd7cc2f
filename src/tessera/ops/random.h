// Counter-based random tensors (base/rng.h): the value of an element depends on the key and its
// index alone.
#pragma once

#include <optional>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/kernels/attention/visibility.h"
#include "tessera/ops/tensor.h"
#include "tessera/spec/mechanism.h"

namespace tessera::ops {

/// x with each element zeroed with probability p and the others scaled by 1 / (1 - p).
Tensor dropout(const Tensor& x, double p, const RandomKey& key);
/// The same of documents one after another, `lengths` of the rows of x [N, ..] in all, each with
/// the random numbers of its own stream, as if it were alone.
Tensor dropout(const Tensor& x,
               double p,
               const std::vector<int64_t>& lengths,
               const std::vector<RandomKey>& streams);
/// Index of a row among those that a stream numbers.
struct StreamRow {
  RandomKey stream;
  int64_t index = 0;
};
/// The same of rows in any order, each with the random numbers of its place.
Tensor dropout(const Tensor& x, double p, const std::vector<StreamRow>& rows);

/// Dropout of a matrix of weights, or of a part of one.
struct Dropout {
  double p = 0;  // 0: none
  RandomKey key{0};
  /// Instead of the key, one for each of B sequences: weights [B, .., n, m].
  std::vector<RandomKey> streams = {};
  /// Where weights [.., n, m] lie in the matrices [.., T, S] whose elements are numbered: rows from
  /// `row` on, and columns of these ranges. Without it they are the matrices.
  struct Part {
    int64_t T = 0, S = 0, row = 0;
    std::vector<kernels::KeyRange> columns;
  };
  std::optional<Part> part = {};

  explicit operator bool() const { return p > 0; }
  /// Elements whose 32 bits are below it become 0, the others are multiplied by `scale`.
  uint32_t limit() const { return static_cast<uint32_t>(p * 4294967296.0); }
  float scale() const { return static_cast<float>(1 / (1 - p)); }
  /// Of sequence `b` of `n`, whose elements are numbered from 0 on.
  const RandomKey& stream(int64_t b, int64_t n) const;
  Tensor operator()(const Tensor& weights) const;
};

/// Initial values of a parameter, drawn in double from the stream of `key` and its name.
Tensor initial_values(const spec::ParamDecl& decl, const RandomKey& key, at::ScalarType type);

}  // namespace tessera::ops
