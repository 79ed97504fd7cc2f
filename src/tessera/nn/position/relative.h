// What the schemes that act on scores share: where their parameters live, and distances.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/ops/attention/relative_products.h"

namespace tessera::nn {

/// Where a part finds parameters declared with PositionConfig::declare.
inline Builder home(const Builder& builder, const std::string& share) {
  return share.empty() ? builder : builder.shared(share);
}

/// Positions first, first + step, ...: [n] int64.
Tensor positions_from(int64_t first, int64_t step, int64_t n, at::Device device);
/// Of the queries and of the keys of a block.
Tensor query_positions(const ops::ScoreBlock& block);
Tensor key_positions(const ops::ScoreBlock& block);

/// Key minus query for every score of a block, [T, S] int64.
Tensor distances(const ops::ScoreBlock& block);

/// The row that each score of a block reads, [T, S]: row(key - query).
Tensor indices(const ops::ScoreBlock& block, const std::function<int64_t(int64_t)>& row);

/// Distances that a call can meet, for terms that are tables by distance.
struct DistanceRange {
  int64_t past = 0, future = 0;  // both at least 0
  /// Of all documents of the call, no farther than `limit` where that is positive.
  static DistanceRange of(const ScoreSite& site, const Context& context, int64_t limit = 0);
  int64_t rows() const { return past + 1 + future; }
};

/// A term of a scheme by distance alone as a table of the distances in `range`, for queries and
/// keys like q_NHD. Element by element the term's own bits.
ops::ScoreTerm as_table(const ops::ScoreTerm& term,
                        const DistanceRange& range,
                        const Tensor& q_NHD);

}  // namespace tessera::nn
