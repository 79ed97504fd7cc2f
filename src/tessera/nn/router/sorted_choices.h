// Choices of experts, sorted, so that a product is one call over all experts.
#pragma once

#include <memory>

#include "tessera/nn/context.h"

namespace tessera::nn {

/// Where choices [N, K] lie among the rows sorted by expert: those of experts alone, in the order
/// of tokens within an expert.
struct SortedChoices {
  std::shared_ptr<const Groups> groups;
  Tensor token_S;   // whose row it is
  Tensor choice_S;  // its place in [N * K]
  Tensor row_NK;    // the way back; 0 where a choice has no row
  Tensor has_NK;    // bool: whether a choice has a row; undefined where all have
  bool all() const { return !has_NK.defined(); }
};

/// expert_NK int64 on the CPU; what is not in [0, experts) has no row.
SortedChoices sort_by_expert(const Tensor& expert_NK, int64_t experts);

/// sum_ND + weight_N1 y of every token's j-th choice, y_SD its row (weight undefined: 1); tokens
/// whose choice has none keep their sum.
Tensor with_choice(const Tensor& sum_ND,
                   int64_t j,
                   const Tensor& y_SD,
                   const SortedChoices& sorted,
                   const Tensor& weight_N1);

}  // namespace tessera::nn
