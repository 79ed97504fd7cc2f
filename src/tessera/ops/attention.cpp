#include "tessera/ops/attention.h"

#include <limits>

#include "tessera/kernels/matmul.h"

namespace tessera::ops {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
// scores beyond this many are computed block by block, so that memory stays linear
constexpr int64_t kScoresAtOnce = int64_t{1} << 21;
constexpr int64_t kQueriesPerChunk = 64;

Tensor distance_bias(const ScoreTerm& term,
                     int64_t start,
                     int64_t t,
                     int64_t first,
                     int64_t s,
                     at::ScalarType type) {
  const auto on = at::TensorOptions().dtype(at::kLong).device(term.bias_HR.device());
  const Tensor distance =
      at::arange(first, first + s, on).unsqueeze(0) - at::arange(start, start + t, on).unsqueeze(1);
  const Tensor index = (distance + term.zero).clamp(0, term.bias_HR.size(1) - 1);
  return term.bias_HR.to(type).index_select(1, index.flatten()).reshape({-1, t, s});
}

bool plain_softmax(const ScoreOptions& options) {
  return options.softcap == 0 && !options.term && !options.visibility && !options.sinks_H.defined();
}

}  // namespace

Tensor visible_keys(int64_t start,
                    int64_t t,
                    int64_t first,
                    int64_t s,
                    const ScoreOptions& options,
                    int64_t heads,
                    at::Device device) {
  if (options.visibility) {
    const kernels::Visibility& who = *options.visibility;
    const int64_t n = who.same_for_heads() ? 1 : heads;
    Tensor count = at::zeros({n, t, s}, at::kChar);
    auto* out = count.data_ptr<int8_t>();
    for (int64_t h = 0; h < n; ++h)
      for (int64_t i = 0; i < t; ++i)
        for (const kernels::KeyRange& range : who.ranges(h, start + i, start + i + 1))
          for (int64_t j = std::max(range.begin, first); j < std::min(range.end, first + s); ++j)
            out[(h * t + i) * s + j - first] =
                static_cast<int8_t>(who.multiplicity(h, start + i, j));
    return (n == 1 ? count.squeeze(0) : count).to(device);
  }
  const auto long_on = at::TensorOptions().dtype(at::kLong).device(device);
  const Tensor query = at::arange(start, start + t, long_on).unsqueeze(1),
               key = at::arange(first, first + s, long_on).unsqueeze(0);
  if (!options.causal) {
    if (options.window == 0)
      return at::ones({t, s}, at::TensorOptions().dtype(at::kChar).device(device));
    return ((query - key).abs() <= options.window / 2).to(at::kChar);
  }
  Tensor visible = key <= query;
  if (options.window > 0) visible = visible.logical_and(key > query - options.window);
  return visible.to(at::kChar);
}

Tensor attention_plain(const Tensor& q_BHTD,
                       const Tensor& k_BGSD,
                       const Tensor& v_BGSD,
                       int64_t start,
                       int64_t first,
                       const ScoreOptions& options,
                       const std::function<Tensor(const Tensor&)>& drop) {
  const auto type = wide(q_BHTD);
  const int64_t h = q_BHTD.size(1), t = q_BHTD.size(2), s = k_BGSD.size(2);
  const int64_t per_group = h / k_BGSD.size(1);
  const Tensor q = q_BHTD.to(type), k = k_BGSD.to(type).repeat_interleave(per_group, 1),
               v = v_BGSD.to(type).repeat_interleave(per_group, 1);
  const ScoreBlock block{q, k, start, first, options.scale};

  Tensor scores = at::matmul(q, k.transpose(-1, -2)) * options.scale;
  if (options.softcap > 0) scores = options.softcap * at::tanh(scores / options.softcap);
  if (options.term.bias_HR.defined())
    scores = scores + distance_bias(options.term, start, t, first, s, type);
  if (options.term.bias) scores = scores + options.term.bias(block, options.term.inputs).to(type);

  const Tensor count = visible_keys(start, t, first, s, options, h, q.device());
  const Tensor hidden = count.eq(0);
  if (options.visibility && count.gt(1).any().item<bool>())
    scores = scores + count.to(type).clamp_min(1).log();
  scores = scores.masked_fill(hidden, kMinusInfinity);
  Tensor weights;
  if (options.sinks_H.defined()) {
    const Tensor sink =
        options.sinks_H.to(type).reshape({1, h, 1, 1}).expand({scores.size(0), h, t, 1});
    weights = at::softmax(at::cat({scores, sink}, -1), -1).narrow(-1, 0, s);
  } else {
    weights = at::softmax(scores, -1);
    // a row without keys: all its weights are 0, never NaN
    if (hidden.all(-1).any().item<bool>()) weights = weights.masked_fill(hidden, 0);
  }
  if (drop) weights = drop(weights);
  Tensor out = at::matmul(weights, v);
  if (options.term.values) out = out + options.term.values(weights, block, options.term.inputs);
  return out.to(q_BHTD.scalar_type());
}

Tensor attention_equal(const Tensor& q_BTHD,
                       const Tensor& k_BTGD,
                       const Tensor& v_BTGD,
                       const ScoreOptions& options,
                       const std::function<Tensor(const Tensor&)>& drop) {
  const int64_t b = q_BTHD.size(0), t = q_BTHD.size(1), heads = q_BTHD.size(2);
  const Tensor q = q_BTHD.transpose(1, 2), k = k_BTGD.transpose(1, 2), v = v_BTGD.transpose(1, 2);
  const bool all_visible =
      options.window == 0 || (options.causal ? options.window >= t : options.window / 2 >= t - 1);
  // the fused form of libtorch does not know caps and draws its own dropout
  if (plain_softmax(options) && !drop && all_visible && q.scalar_type() == at::kFloat) {
    const bool grouped = q.size(1) != k.size(1);
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, options.causal, options.scale,
                                            grouped)
        .transpose(1, 2);
  }
  // dropout draws for the whole matrix of weights
  if (drop || b * heads * t * t <= kScoresAtOnce)
    return attention_plain(q, k, v, 0, 0, options, drop).transpose(1, 2);
  return attention_chunked(q, k, v, 0, 0, options, kQueriesPerChunk).transpose(1, 2);
}

Tensor attention(const Tensor& q_THD,
                 const std::vector<KeyValues>& kv,
                 int64_t start,
                 const ScoreOptions& options,
                 const std::function<Tensor(const Tensor&)>& drop) {
  if (use_kernels(q_THD) && !drop) return attention_kernel(q_THD, kv, start, options);
  // a whole document: one sequence of a batch
  if (kv.size() == 1 && kv[0].first == 0 && start == 0 && kv[0].k_SGD.size(0) == q_THD.size(0) &&
      !use_kernels(q_THD))
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
  const Tensor q = q_THD.transpose(0, 1).unsqueeze(0);
  const int64_t first = kv.front().first;
  const bool many = q.size(1) * q.size(2) * k.size(2) > kScoresAtOnce;
  const Tensor out = many && !drop
                         ? attention_chunked(q, k, v, start, first, options, kQueriesPerChunk)
                         : attention_plain(q, k, v, start, first, options, drop);
  return out.squeeze(0).transpose(0, 1);
}

Tensor row_products(const Tensor& x, const Tensor& w) {
  if (!use_kernels(x)) return at::matmul(x, w.transpose(-1, -2));
  const int64_t t = x.size(-2), d = x.size(-1), s = w.size(-2);
  auto batch = at::infer_size(x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)),
                              w.sizes().slice(0, static_cast<size_t>(w.dim() - 2)));
  const auto flat = [&](const Tensor& m) {
    auto sizes = batch;
    sizes.push_back(m.size(-2));
    sizes.push_back(d);
    return m.expand(sizes).reshape({-1, m.size(-2), d}).contiguous();
  };
  const Tensor a = flat(x), b = flat(w);
  Tensor y = at::empty({a.size(0), t, s}, x.options());
  for (int64_t i = 0; i < a.size(0); ++i)
    kernels::matmul(a.const_data_ptr<float>() + i * t * d, t, d, d, DType::f32,
                    b.const_data_ptr<float>() + i * s * d, s, nullptr,
                    y.data_ptr<float>() + i * t * s, s);
  batch.push_back(t);
  batch.push_back(s);
  return y.reshape(batch);
}

}  // namespace tessera::ops
