#include "tessera/ops/attention.h"

#include <limits>

namespace tessera::ops {

Tensor visible_keys(int64_t start,
                    int64_t t,
                    int64_t first,
                    int64_t s,
                    const ScoreOptions& options,
                    at::Device device) {
  const auto long_on = at::TensorOptions().dtype(at::kLong).device(device);
  const Tensor query = at::arange(start, start + t, long_on).unsqueeze(1),
               key = at::arange(first, first + s, long_on).unsqueeze(0);
  if (!options.causal) {
    if (options.window == 0)
      return at::ones({t, s}, at::TensorOptions().dtype(at::kBool).device(device));
    return (query - key).abs() <= options.window / 2;
  }
  Tensor visible = key <= query;
  if (options.window > 0) visible = visible.logical_and(key > query - options.window);
  return visible;
}

Tensor attention_plain(const Tensor& q_BHTD,
                       const Tensor& k_BGSD,
                       const Tensor& v_BGSD,
                       const Tensor& visible,
                       const ScoreOptions& options,
                       const std::function<Tensor(const Tensor&)>& drop) {
  const auto type = wide(q_BHTD);
  const int64_t per_group = q_BHTD.size(1) / k_BGSD.size(1);
  const Tensor k = k_BGSD.to(type).repeat_interleave(per_group, 1),
               v = v_BGSD.to(type).repeat_interleave(per_group, 1);
  Tensor scores = at::matmul(q_BHTD.to(type), k.transpose(-1, -2)) * options.scale;
  if (options.softcap > 0) scores = options.softcap * at::tanh(scores / options.softcap);
  // a row without keys: all its weights are 0, never NaN
  scores = scores.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  Tensor weights = at::softmax(scores, -1);
  if (!visible.any(-1).all().item<bool>()) weights = weights.masked_fill(visible.logical_not(), 0);
  if (drop) weights = drop(weights);
  return at::matmul(weights, v).to(q_BHTD.scalar_type());
}

Tensor attention_equal(const Tensor& q_BTHD,
                       const Tensor& k_BTGD,
                       const Tensor& v_BTGD,
                       const ScoreOptions& options,
                       const std::function<Tensor(const Tensor&)>& drop) {
  const int64_t t = q_BTHD.size(1);
  const Tensor q = q_BTHD.transpose(1, 2), k = k_BTGD.transpose(1, 2), v = v_BTGD.transpose(1, 2);
  const bool all_visible =
      options.window == 0 || (options.causal ? options.window >= t : options.window / 2 >= t - 1);
  // the fused form of libtorch does not know caps and draws its own dropout
  if (options.softcap == 0 && !drop && all_visible && q.scalar_type() == at::kFloat) {
    const bool grouped = q.size(1) != k.size(1);
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, options.causal, options.scale,
                                            grouped)
        .transpose(1, 2);
  }
  return attention_plain(q, k, v, visible_keys(0, t, 0, t, options, q.device()), options, drop)
      .transpose(1, 2);
}

Tensor attention(const Tensor& q_THD,
                 const std::vector<KeyValues>& kv,
                 int64_t start,
                 const ScoreOptions& options,
                 const std::function<Tensor(const Tensor&)>& drop) {
  if (use_kernels(q_THD) && !drop) return attention_kernel(q_THD, kv, start, options);
  // a whole document: one sequence of a batch
  if (kv.size() == 1 && kv[0].first == start && kv[0].k_SGD.size(0) == q_THD.size(0))
    return attention_equal(q_THD.unsqueeze(0), kv[0].k_SGD.unsqueeze(0), kv[0].v_SGD.unsqueeze(0),
                           options, drop)
        .squeeze(0);
  std::vector<Tensor> keys, values;
  for (const KeyValues& part : kv) {
    keys.push_back(part.k_SGD);
    values.push_back(part.v_SGD);
  }
  const Tensor k = (keys.size() == 1 ? keys[0] : at::cat(keys)).transpose(0, 1).unsqueeze(0);
  const Tensor v = (values.size() == 1 ? values[0] : at::cat(values)).transpose(0, 1).unsqueeze(0);
  const Tensor visible =
      visible_keys(start, q_THD.size(0), kv.front().first, k.size(2), options, q_THD.device());
  return attention_plain(q_THD.transpose(0, 1).unsqueeze(0), k, v, visible, options, drop)
      .squeeze(0)
      .transpose(0, 1);
}

}  // namespace tessera::ops
