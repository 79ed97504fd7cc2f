// Which keys of a memory have the greatest products with a query: of all, or of those alone that
// share a bucket with it in some of several tables. Buckets of unit vectors are the nearest of
// random directions: argmax [x R; -x R], R Gaussian (cross-polytope hashing: Andoni, Indyk,
// Laarhoven, Razenshteyn, Schmidt 2015, arXiv:1509.02897). They depend on the vector and R alone,
// so that a query finds the same keys however a document is cut into calls.
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// What queries and heads find, list t * H + h for query t and head h: keys[ends[list - 1]] up to
/// keys[ends[list]], ascending numbers.
struct FoundKeys {
  std::vector<int64_t> keys, ends;
  int64_t scored = 0;  // products that were computed
  int64_t begin(int64_t list) const { return list == 0 ? 0 : ends[static_cast<size_t>(list - 1)]; }
  int64_t end(int64_t list) const { return ends[static_cast<size_t>(list)]; }
};

/// Buckets of x_NHD in R tables by rotations [R, H, D, n / 2] (lsh_rotations) in double: [N, H, R],
/// whole numbers below n in float32. No gradient; those of a row do not depend on the others.
Tensor key_buckets(const Tensor& x_NHD, const Tensor& rotations_RHDn);

class KeySearch {
 public:
  /// Keys [S, H, D] in parts that follow one another.
  explicit KeySearch(std::vector<Tensor> k_SHD) : keys_(std::move(k_SHD)) {}
  /// And their buckets [S, H, R], of at most 256.
  KeySearch(std::vector<Tensor> k_SHD, const std::vector<Tensor>& buckets_SHR);

  /// The k keys with the greatest products; of equal ones the earlier win. No gradient. Where
  /// Form::kernel serves q, what a query finds does not depend on the others.
  FoundKeys nearest(const Tensor& q_THD, int64_t k);
  /// The same of the keys that share a bucket with the query; fewer where these are fewer.
  FoundKeys nearest(const Tensor& q_THD, const Tensor& buckets_THR, int64_t k) const;

 private:
  void score(const Tensor& q_THD);
  template <class T>
  FoundKeys greatest(int64_t k) const;
  template <class T>
  FoundKeys sharing(const Tensor& q_THD, const Tensor& buckets_THR, int64_t k) const;

  std::vector<Tensor> keys_;
  Tensor scores_HTN_;   // one call's, in memory that the next one takes
  Tensor buckets_HRN_;  // bytes
};

}  // namespace tessera::ops
