// Which rank of a ring holds which positions of a sequence, and what pieces of two ranks see of
// each other. Liu, Zaharia, Abbeel 2023, arXiv:2310.01889; Brandon et al. 2023, arXiv:2311.09431.
#pragma once

#include <limits>
#include <vector>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

/// Which positions of a causal sequence a rank holds decides how even the work is.
enum class RingLayout {
  contiguous,  // [a T / P, (a + 1) T / P): the first rank has little to do
  zigzag,      // chunks a and 2 P - 1 - a of 2 P: even over all steps
  striped,     // positions a, a + P, a + 2 P ..: even at every step
};

/// Rows [row, row + count) of a rank hold positions first, first + step, ...
struct RingPiece {
  int64_t first = 0, step = 1, count = 0, row = 0;
  int64_t position(int64_t i) const { return first + i * step; }
};

/// Which rank holds what of `tokens` positions. All ranks have the same number of rows; the rows
/// that no piece covers are padding, seen by no query.
class RingOrder {
 public:
  RingOrder(int64_t tokens, int64_t ranks, RingLayout layout);
  int64_t tokens() const { return tokens_; }
  int64_t ranks() const { return static_cast<int64_t>(pieces_.size()); }
  int64_t rows() const { return rows_; }
  const std::vector<RingPiece>& pieces(int64_t rank) const {
    return pieces_.at(static_cast<size_t>(rank));
  }
  /// The position in every row, rank after rank; -1 in padding.
  std::vector<int64_t> positions() const;
  /// The row of every position, counted over all ranks: the inverse of positions().
  std::vector<int64_t> places() const;
  /// Pairs of a query and a key it sees that `rank` computes at `step`.
  int64_t work(int64_t rank, int64_t step, const ScoreOptions& options) const;

 private:
  int64_t tokens_, rows_;
  std::vector<std::vector<RingPiece>> pieces_;
};

/// Queries of one piece and keys of another, both numbered from 0: position = first + step *
/// number. The steps are the same, so that causality and windows are a band: low <= key - query <=
/// high.
struct Meeting {
  RingPiece queries, keys;
  int64_t low, high;

  Meeting(const RingPiece& queries, const RingPiece& keys, const ScoreOptions& options);
  /// Whether nothing is seen, by causality and windows alone.
  bool empty() const;
  /// The options by numbers, from 0 on both sides. Sinks are left out: they join once.
  ScoreOptions numbered(const ScoreOptions& options) const;
  /// The gradient of a term's table from that of the rows that numbered() makes of it.
  Tensor of_whole_table(const Tensor& d_rows_HR, const ScoreTerm& term) const;

 private:
  /// key - query, in positions, of every row of the table.
  Tensor distances(at::Device device) const;
  ScoreTerm numbered(const ScoreTerm& term) const;
  std::shared_ptr<const kernels::Visibility> visible(const ScoreOptions& options) const;
  friend class RingOrder;
};

}  // namespace tessera::ops
