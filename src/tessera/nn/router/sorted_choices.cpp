#include "tessera/nn/router/sorted_choices.h"

namespace tessera::nn {

SortedChoices sort_by_expert(const Tensor& expert_NK, int64_t experts) {
  const Tensor chosen = expert_NK.contiguous();
  const auto* expert = chosen.const_data_ptr<int64_t>();
  const int64_t n = chosen.numel(), k = chosen.size(1);
  const auto is_row = [&](int64_t i) { return expert[i] >= 0 && expert[i] < experts; };
  Groups groups{.offsets = std::vector<int64_t>(static_cast<size_t>(experts) + 1, 0)};
  for (int64_t i = 0; i < n; ++i)
    if (is_row(i)) ++groups.offsets[static_cast<size_t>(expert[i]) + 1];
  for (size_t e = 1; e < groups.offsets.size(); ++e) groups.offsets[e] += groups.offsets[e - 1];
  SortedChoices out;
  const int64_t rows = groups.offsets.back();
  out.token_S = at::empty({rows}, at::kLong);
  out.choice_S = at::empty({rows}, at::kLong);
  out.row_NK = at::zeros({chosen.size(0), k}, at::kLong);
  if (rows < n) out.has_NK = (chosen >= 0) & (chosen < experts);
  std::vector<int64_t> next = groups.offsets;
  auto *token = out.token_S.data_ptr<int64_t>(), *choice = out.choice_S.data_ptr<int64_t>(),
       *row = out.row_NK.data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    if (!is_row(i)) continue;
    const int64_t at = next[static_cast<size_t>(expert[i])]++;
    token[at] = i / k;
    choice[at] = i;
    row[i] = at;
  }
  groups.token_S = out.token_S;
  out.groups = std::make_shared<const Groups>(std::move(groups));
  return out;
}

Tensor with_choice(const Tensor& sum_ND,
                   int64_t j,
                   const Tensor& y_SD,
                   const SortedChoices& sorted,
                   const Tensor& weight_N1) {
  if (y_SD.size(0) == 0) return sum_ND;
  const auto device = y_SD.device();
  Tensor term = y_SD.index_select(0, sorted.row_NK.select(1, j).contiguous().to(device))
                    .to(sum_ND.scalar_type());
  if (weight_N1.defined()) term = term * weight_N1;
  return sorted.all() ? sum_ND + term
                      : at::where(sorted.has_NK.narrow(1, j, 1).to(device), sum_ND + term, sum_ND);
}

}  // namespace tessera::nn
