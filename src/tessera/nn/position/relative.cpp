#include "tessera/nn/position/relative.h"

namespace tessera::nn {

Tensor distances(const ops::ScoreBlock& block) {
  const auto on = at::TensorOptions().dtype(at::kLong).device(block.q_BHTD.device());
  const int64_t i = block.first_query, j = block.first_key;
  return at::arange(j, j + block.k_BHSD.size(2), on).unsqueeze(0) -
         at::arange(i, i + block.q_BHTD.size(2), on).unsqueeze(1);
}

Tensor indices(const ops::ScoreBlock& block, const std::function<int64_t(int64_t)>& row) {
  const int64_t t = block.q_BHTD.size(2), s = block.k_BHSD.size(2);
  // a block meets T + S - 1 distances
  const int64_t lowest = block.first_key - (block.first_query + t - 1);
  std::vector<int64_t> of_distance;
  for (int64_t d = 0; d < t + s - 1; ++d) of_distance.push_back(row(lowest + d));
  return at::tensor(of_distance, at::kLong)
      .to(block.q_BHTD.device())
      .index_select(0, (distances(block) - lowest).flatten())
      .reshape({t, s});
}

DistanceRange DistanceRange::of(const ScoreSite& site, const Context& context, int64_t limit) {
  int64_t far = std::max<int64_t>(site.longest - 1, 0);
  if (limit > 0) far = std::min(far, limit);
  return {far, context.causal ? 0 : far};
}

}  // namespace tessera::nn
