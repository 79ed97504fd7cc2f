// Byte n-grams with interpolated Kneser-Ney smoothing: a baseline for language models. Torch-free.
//
//   P_0 = 1 / 256
//   P_k(w | h) = max(c_k(hw) - d, 0) / C_k(h) + d N_k(h) / C_k(h) P_{k-1}(w | h without its first)
//   C_k(h) = sum_w c_k(hw),   N_k(h) = #{w : c_k(hw) > 0};   P_k = P_{k-1} where C_k(h) = 0
//
// c_n are the counts of the training text; below n, c_k(g) is the number of distinct bytes seen
// before g. Discount d = 0.75 for every order. No symbols for beginning and end. Kneser, Ney 1995;
// Chen, Goodman 1999, sec. 2.7.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/base/cancel.h"

namespace tessera::infer {

class NgramModel {
 public:
  static constexpr int kMaxOrder = 8;  // an n-gram is one 64-bit word
  static constexpr double kDiscount = 0.75;

  /// Counts the n-grams of `text`, n = order. Throws Error(usage) for an order outside 1 to
  /// kMaxOrder, Error(input) for a text shorter than one n-gram.
  NgramModel(std::string_view text, int order);

  int order() const { return static_cast<int>(tables_.size()); }
  /// P(next | past) with the last order - 1 bytes of `past`, or all of a shorter past.
  double probability(std::string_view past, unsigned char next) const;
  /// Sum of -ln P over the bytes of `text` from `begin` on; each is predicted from all bytes before
  /// it.
  double nll_sum(std::string_view text, size_t begin, const CancelToken* cancel = nullptr) const;

 private:
  struct Entry {
    uint64_t gram;  // its bytes, the last one lowest
    uint64_t count;
  };
  static std::vector<Entry> counted(std::vector<uint64_t> grams);
  /// The first entry that is not less than the gram.
  static std::vector<Entry>::const_iterator find(const std::vector<Entry>& table, uint64_t gram);
  static bool holds(const std::vector<Entry>& table, uint64_t gram);
  /// tables_[k - 1] holds c_k sorted by gram, so that a context's entries are adjacent.
  std::vector<std::vector<Entry>> tables_;
};

}  // namespace tessera::infer
