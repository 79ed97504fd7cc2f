#include "tessera/nn/position/relative.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {

Tensor positions_from(int64_t first, int64_t step, int64_t n, at::Device device) {
  return at::arange(n, at::TensorOptions().dtype(at::kLong).device(device)) * step + first;
}

Tensor query_positions(const ops::ScoreBlock& block) {
  const Tensor& q = block.q_BHTD;
  return positions_from(block.first_query, block.query_step, q.size(2), q.device());
}

Tensor key_positions(const ops::ScoreBlock& block) {
  const Tensor& k = block.k_BHSD;
  return positions_from(block.first_key, block.key_step, k.size(2), k.device());
}

Tensor distances(const ops::ScoreBlock& block) {
  return key_positions(block).unsqueeze(0) - query_positions(block).unsqueeze(1);
}

Tensor indices(const ops::ScoreBlock& block, const std::function<int64_t(int64_t)>& row) {
  const int64_t t = block.q_BHTD.size(2), s = block.k_BHSD.size(2);
  // the distances between the first key and the last query, and the other way round
  const int64_t lowest = block.first_key - (block.first_query + (t - 1) * block.query_step),
                highest = block.first_key + (s - 1) * block.key_step - block.first_query;
  std::vector<int64_t> of_distance;
  for (int64_t d = lowest; d <= highest; ++d) of_distance.push_back(row(d));
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

ops::ScoreTerm as_table(const ops::ScoreTerm& term,
                        const DistanceRange& range,
                        const Tensor& q_NHD) {
  if (!term.bias) return term;
  // one query with its whole past, and one with its whole future
  const int64_t h = q_NHD.size(1), d = q_NHD.size(2);
  const auto row = [&](int64_t query, int64_t keys) {
    const auto none = [&](int64_t n) {
      return at::zeros({1, h, n, d}, q_NHD.options().dtype(ops::wide(q_NHD)));
    };
    const Tensor q = none(1), k = none(keys);
    const std::vector<int64_t> of_heads{1, h, 1, keys};
    return ops::expanded(ops::added_by_term(term, {q, k, query, 0}), of_heads).reshape({h, keys});
  };
  Tensor table = row(range.past, range.past + 1);
  if (range.future > 0)
    table = at::cat({table, row(0, range.future + 1).narrow(1, 1, range.future)}, 1);
  return {.bias_HR = table, .zero = range.past};
}

}  // namespace tessera::nn
