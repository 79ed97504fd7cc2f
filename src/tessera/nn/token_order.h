// Two streams of one document: its text, followed by queries for positions of the text
// that do not see the token there. Tokens of the text are given in an order. A token of the text
// sees those that were given up to itself, a query those that were given before the token it is
// for; no token sees a query. Yang et al. 2019 (XLNet), arXiv:1906.08237, sec. 2.3. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/kernels/attention/visibility.h"

namespace tessera::nn {

struct TokenOrder {
  std::vector<int64_t> ranks;   // of each token of the text: when it is given; equal: together
  std::vector<int64_t> places;  // of each query: the token of the text that it is for, each
                                // one's another

  int64_t text() const { return static_cast<int64_t>(ranks.size()); }
  int64_t queries() const { return static_cast<int64_t>(places.size()); }
};

/// What one of the streams sees of the text, every token of which has one query.
class OrderVisibility final : public kernels::Visibility {
 public:
  /// `strict`: of the queries.
  OrderVisibility(std::shared_ptr<const TokenOrder> order, bool strict)
      : order_(std::move(order)), strict_(strict) {}
  int64_t multiplicity(int64_t /*head*/, int64_t query, int64_t key) const override {
    const int64_t own = order_->ranks[static_cast<size_t>(query)],
                  other = order_->ranks[static_cast<size_t>(key)];
    return other < own || (other == own && !strict_) ? 1 : 0;
  }
  std::vector<kernels::KeyRange> ranges(int64_t /*head*/,
                                        int64_t /*begin*/,
                                        int64_t /*end*/) const override {
    return {{0, order_->text()}};
  }

 private:
  std::shared_ptr<const TokenOrder> order_;
  bool strict_;
};

}  // namespace tessera::nn
