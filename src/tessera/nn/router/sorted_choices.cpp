#include "tessera/nn/router/sorted_choices.h"

namespace tessera::nn {

SortedChoices sort_by_expert(const Tensor& expert_NK, int64_t experts) {
  const Tensor chosen = expert_NK.contiguous();
  const auto* expert = chosen.const_data_ptr<int64_t>();
  const int64_t n = chosen.numel(), k = chosen.size(1);
  const auto is_row = [&](int64_t i) { return expert[i] >= 0 && expert[i] < experts; };
  Groups groups{std::vector<int64_t>(static_cast<size_t>(experts) + 1, 0)};
  for (int64_t i = 0; i < n; ++i)
    if (is_row(i)) ++groups.offsets[static_cast<size_t>(expert[i]) + 1];
  for (size_t e = 1; e < groups.offsets.size(); ++e) groups.offsets[e] += groups.offsets[e - 1];
  SortedChoices out;
  const int64_t rows = groups.offsets.back();
  out.all = rows == n;
  out.token_S = at::empty({rows}, at::kLong);
  out.choice_S = at::empty({rows}, at::kLong);
  out.row_NK = at::zeros({chosen.size(0), k}, at::kLong);
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
  out.groups = std::make_shared<const Groups>(std::move(groups));
  return out;
}

}  // namespace tessera::nn
