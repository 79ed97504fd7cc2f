#include "tessera/ops/attention/unit_attention.h"

#include <cmath>
#include <numbers>

#include "tessera/base/threads.h"
#include "tessera/kernels/basic/weighted_sum.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/ops/attention/query_blocks.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

// rows of scores in memory at a time
constexpr int64_t kUnitQueryBlock = 32;        // of the kernel
constexpr int64_t kUnitQueryBlockPlain = 128;  // of torch's operations

// (x - mu) / (sigma sqrt 2) with mu = sqrt(1/2) and sigma = sqrt(1 / (4 pi))
const double kLaplaceMean = std::numbers::sqrt2 / 2;
const double kLaplaceFactor = std::sqrt(2 * std::numbers::pi);

Tensor acted(const Tensor& scores, ScoreAct act) {
  if (act == ScoreAct::relu2) return at::relu(scores).square();
  return (at::erf((scores - kLaplaceMean) * kLaplaceFactor) + 1) / 2;
}

float acted(float score, ScoreAct act) {
  if (act == ScoreAct::relu2) return score > 0 ? score * score : 0.0f;
  return static_cast<float>(
      (std::erf((static_cast<double>(score) - kLaplaceMean) * kLaplaceFactor) + 1) / 2);
}

}  // namespace

Tensor unit_attention(const Tensor& q_BTK,
                      const Tensor& k_BSK,
                      const Tensor& v_BSV,
                      const UnitScores& how) {
  const auto type = wide(q_BTK);
  Tensor scores = ops::product(q_BTK.to(type), k_BSK.to(type).transpose(-1, -2)) /
                  how.divisor_T.to(type).unsqueeze(-1);
  if (how.bias_TS.defined()) scores = scores + how.bias_TS.to(type);
  Tensor weights = acted(scores, how.act);
  if (how.causal) weights = weights.tril(how.start);
  return ops::product(weights, v_BSV.to(type)).to(q_BTK.scalar_type());
}

Tensor unit_attention_blocks(const Tensor& q_TK,
                             const Tensor& k_SK,
                             const Tensor& v_SV,
                             const UnitScores& how,
                             const ScoreTerm& term,
                             double scale) {
  const int64_t t = q_TK.size(0), keys = k_SK.size(0);
  // one sequence of one head, as blocks and terms have it
  const auto lifted = [](const Tensor& x) { return x.unsqueeze(0).unsqueeze(0); };
  std::vector<Tensor> inputs{lifted(q_TK), lifted(k_SK), lifted(v_SV)};
  ByQueryBlocks by;
  by.reads = {BlockReads::queries, BlockReads::keys, BlockReads::keys};
  if (term.bias_HR.defined()) inputs.push_back(term.bias_HR);
  inputs.insert(inputs.end(), term.inputs.begin(), term.inputs.end());
  by.reads.resize(inputs.size(), BlockReads::all);
  for (int64_t i = 0; i < t; i += kUnitQueryBlockPlain) {
    const int64_t n = std::min(kUnitQueryBlockPlain, t - i);
    by.blocks.push_back({i, n, {{0, how.causal ? how.start + i + n : keys}}, {0}});
  }
  by.run = [how, term, scale](const QueryBlock& block, const std::vector<Tensor>& cuts) {
    ScoreTerm own = term;
    size_t at = 3;
    if (own.bias_HR.defined()) own.bias_HR = cuts[at++];
    own.inputs.assign(cuts.begin() + static_cast<std::ptrdiff_t>(at), cuts.end());
    UnitScores some = how;
    some.start += block.query;
    some.divisor_T = how.divisor_T.narrow(0, block.query, block.queries);
    some.bias_TS = added_by_term(own, {cuts[0], cuts[1], some.start, 0, scale});
    return unit_attention(cuts[0], cuts[1], cuts[2], some);
  };
  return by_query_blocks(std::move(by), inputs).squeeze(0).squeeze(0);
}

Tensor unit_attention_kernel(const Tensor& q_TK,
                             const std::vector<Tensor>& k_parts,
                             const std::vector<Tensor>& v_parts,
                             const UnitScores& how) {
  const bool causal = how.causal;
  const int64_t start = how.start;
  std::vector<Tensor> k, v;
  int64_t keys = 0;
  for (size_t p = 0; p < k_parts.size(); ++p) {
    k.push_back(k_parts[p].contiguous());
    v.push_back(v_parts[p].contiguous());
    keys += k.back().size(0);
  }
  const Tensor q = q_TK.contiguous(), divisor = how.divisor_T.to(at::kFloat).contiguous(),
               bias = how.bias_TS.defined() ? how.bias_TS.to(at::kFloat).contiguous() : Tensor();
  const int64_t t = q.size(0), width = q.size(1), values = v.at(0).size(1);
  Tensor out = at::empty({t, values}, q.options());
  Tensor block = at::empty({std::min(t, kUnitQueryBlock), keys}, q.options());
  auto* scores = block.data_ptr<float>();
  const auto* by = divisor.const_data_ptr<float>();
  const auto* added = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  const int64_t added_stride = bias.defined() ? bias.size(1) : 0;  // causal: up to the last seen
  for (int64_t first = 0; first < t; first += kUnitQueryBlock) {
    const int64_t rows = std::min(kUnitQueryBlock, t - first);
    const int64_t seen = causal ? start + first + rows : keys;  // by the last row
    // f(part, its first key, its keys that the last row sees)
    const auto for_parts = [&](const auto& f) {
      for (int64_t p = 0, at = 0; at < seen; at += k[static_cast<size_t>(p++)].size(0))
        f(static_cast<size_t>(p), at, std::min(k[static_cast<size_t>(p)].size(0), seen - at));
    };
    for_parts([&](size_t p, int64_t at, int64_t n) {
      kernels::matmul(q.const_data_ptr<float>() + first * width, rows, width, width, DType::f32,
                      k[p].const_data_ptr<float>(), n, nullptr, scores + at, keys);
    });
    parallel_for(rows, 1 + (int64_t{1} << 14) / (1 + seen), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t own = causal ? start + first + i + 1 : keys;
        float* row = scores + i * keys;
        for (int64_t j = 0; j < own; ++j) {
          const float score = row[j] / by[first + i];
          row[j] = acted(added != nullptr ? score + added[(first + i) * added_stride + j] : score,
                         how.act);
        }
        for (int64_t j = own; j < seen; ++j) row[j] = 0;
      }
    });
    for_parts([&](size_t p, int64_t at, int64_t n) {
      kernels::weighted_sum({rows, n, values, scores + at, keys, v[p].const_data_ptr<float>(),
                             values, out.data_ptr<float>() + first * values, values,
                             /*onto=*/at > 0});
    });
  }
  return out;
}

}  // namespace tessera::ops
