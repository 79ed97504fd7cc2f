// ListOps of Long Range Arena (Nangia and Bowman 2018, arXiv:1804.06028; Tay et al. 2020,
// arXiv:2011.04006): nested lists of digits under MIN, MAX, MED (integer part of the median) and SM
// (sum modulo 10); the class is their value, 0 to 9. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/cancel.h"

namespace tessera::train {

struct ListOpsOptions {
  int64_t max_depth = 10;                       // operators are at depths 1 to max_depth - 1
  int64_t max_args = 10;                        // an operator has 2 to max_args arguments
  int64_t min_length = 500, max_length = 2000;  // both exclusive; a digit is one token, an operator
                                                // with its end two
};

struct ListOpsTree {
  std::string source;  // "[MAX 4 [MIN 2 3 ] 1 ]"
  int64_t value = 0;
};

/// `n` different trees, a pure function of options and seed; `draws` receives the number of trees
/// drawn. Throws Error(usage) for options without a tree.
std::vector<ListOpsTree> make_listops(const ListOpsOptions& options,
                                      int64_t n,
                                      uint64_t seed,
                                      int64_t* draws = nullptr,
                                      const CancelToken* cancel = nullptr);

/// One character for each token of a tree: m, M, e, s for [MIN, [MAX, [MED, [SM; ]; the digits.
/// Parentheses, which the published files have, are left out. Throws Error(file) with `where`.
std::string listops_symbols(std::string_view source, const std::string& where);

/// The value of a tree as listops_symbols() writes it. Throws Error(file) with `where`.
int64_t listops_value(std::string_view symbols, const std::string& where);

/// Accuracy without reading the arguments, fitted on the same trees, of which `symbols` are as
/// listops_symbols() writes them.
struct ListOpsBaselines {
  double majority = 0;       // of the most frequent class
  double root_operator = 0;  // of the most frequent class of each root operator
  double mean_length = 0;    // tokens
};
ListOpsBaselines listops_baselines(const std::vector<std::string>& symbols,
                                   const std::vector<int64_t>& values);

}  // namespace tessera::train
