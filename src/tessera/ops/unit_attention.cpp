#include "tessera/ops/unit_attention.h"

#include <cmath>
#include <numbers>

#include "tessera/base/threads.h"
#include "tessera/kernels/matmul.h"
#include "tessera/kernels/weighted_sum.h"

namespace tessera::ops {
namespace {

constexpr int64_t kQueryBlock = 32;  // rows of scores in memory at a time

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
  Tensor scores = at::matmul(q_BTK.to(type), k_BSK.to(type).transpose(-1, -2)) /
                  how.divisor_T.to(type).unsqueeze(-1);
  if (how.bias_TS.defined()) scores = scores + how.bias_TS.to(type);
  Tensor weights = acted(scores, how.act);
  if (how.causal) weights = weights.tril(how.start);
  return at::matmul(weights, v_BSV.to(type)).to(q_BTK.scalar_type());
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
  Tensor block = at::empty({std::min(t, kQueryBlock), keys}, q.options());
  auto* scores = block.data_ptr<float>();
  const auto* by = divisor.const_data_ptr<float>();
  const auto* added = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  const int64_t added_stride = bias.defined() ? bias.size(1) : 0;  // causal: up to the last seen
  for (int64_t first = 0; first < t; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, t - first);
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
