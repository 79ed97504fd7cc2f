#include "tessera/kernels/attention.h"

#include <cmath>
#include <limits>

#include "tessera/ops/attention.h"
#include "tessera/ops/kv_rows.h"
#include "tessera/ops/pointwise.h"

namespace tessera::ops {
namespace {

/// The parts as the kernel reads them: where they lie.
struct Held {
  std::vector<Tensor> alive;
  std::vector<kernels::KeySpan> spans;
  int64_t heads = 0, width = 0;  // of the values
  kernels::KeyValueView view() const { return {spans.data(), static_cast<int64_t>(spans.size())}; }
};

Tensor dense_rows(const Tensor& t) {
  return t.stride(2) == 1 ? t : t.contiguous();
}

Held held_keys(const std::vector<KeyValues>& kv) {
  Held held;
  held.heads = kv.front().k_SGD.size(1);
  held.width = row_width(kv.front().v_SGD);
  held.alive.reserve(2 * kv.size());
  for (const KeyValues& part : kv) {
    if (part.k_SGD.size(0) == 0) continue;
    const Tensor &k = held.alive.emplace_back(dense_rows(part.k_SGD)),
                 &v = held.alive.emplace_back(dense_rows(part.v_SGD));
    require(k.scalar_type() == v.scalar_type(), "attention", "keys of {}, values of {}",
            c10::toString(k.scalar_type()), c10::toString(v.scalar_type()));
    const int64_t bytes = k.element_size();
    kernels::KeySpan& span = held.spans.emplace_back();
    span.k = k.const_data_ptr(), span.v = v.const_data_ptr();
    span.k_token_stride = bytes * k.stride(0), span.k_head_stride = bytes * k.stride(1);
    span.v_token_stride = bytes * v.stride(0), span.v_head_stride = bytes * v.stride(1);
    span.first = part.first, span.count = k.size(0);
    span.type = kv_dtype(k.scalar_type());
  }
  return held;
}

/// The keys of all parts as numbers, one after another.
Tensor joined_keys(const std::vector<KeyValues>& kv) {
  std::vector<Tensor> keys;
  for (const KeyValues& part : kv) keys.push_back(from_kv_rows(part.k_SGD, at::kFloat));
  return keys.size() == 1 ? keys[0] : at::cat(keys);
}

constexpr int64_t kQueriesPerBias = 64;

/// Queries [begin, begin + t) of the call: what the term adds to their scores with `s` keys,
/// [H or 1, t, S]. k_SGD may be undefined where the term is of distances alone.
Tensor added_scores(const Tensor& q_THD,
                    const Tensor& k_SGD,
                    int64_t s,
                    int64_t start,
                    int64_t first,
                    int64_t begin,
                    int64_t t,
                    const ScoreOptions& options) {
  const int64_t h = q_THD.size(1), query = start + begin;
  Tensor bias = at::zeros({1, t, s}, q_THD.options());
  if (options.term.bias_HR.defined()) {
    const Tensor table = options.term.bias_HR.to(at::kFloat).contiguous();
    const int64_t heads = table.size(0), r = table.size(1);
    bias = at::empty({heads, t, s}, q_THD.options());
    const float* from = table.const_data_ptr<float>();
    float* to = bias.data_ptr<float>();
    for (int64_t a = 0; a < heads; ++a)
      for (int64_t i = 0; i < t; ++i)
        for (int64_t j = 0; j < s; ++j) {
          const int64_t at = options.term.zero + (first + j) - (query + i);
          *to++ = from[a * r + std::clamp<int64_t>(at, 0, r - 1)];
        }
  }
  if (options.term.bias) {
    const Tensor q = q_THD.narrow(0, begin, t).transpose(0, 1).unsqueeze(0);
    const Tensor k = k_SGD.transpose(0, 1).unsqueeze(0).repeat_interleave(h / k_SGD.size(1), 1);
    const Tensor term = options.term.bias({q, k, query, first, options.scale}, options.term.inputs);
    bias = bias + term.squeeze(0).to(at::kFloat);
  }
  return bias.contiguous();
}

/// softmax over the keys that a query sees, [S] each; sums run over them in ascending order, so
/// that hidden keys and other queries do not matter.
void softmax_row(
    const float* scores, const float* times, const float* sink, int64_t s, float* out) {
  float highest = sink != nullptr ? *sink : -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < s; ++j)
    if (times[j] > 0) highest = std::max(highest, scores[j]);
  double total = sink != nullptr ? std::exp(*sink - highest) : 0;
  for (int64_t j = 0; j < s; ++j) {
    out[j] = times[j] > 0 ? times[j] * std::exp(scores[j] - highest) : 0;
    total += out[j];
  }
  if (total == 0) return;
  for (int64_t j = 0; j < s; ++j) out[j] = static_cast<float>(out[j] / total);
}

/// sum_j weights_j v_j, over the keys with weight, in ascending order.
void weighted_sum(const float* weights, const float* v, int64_t s, int64_t width, float* out) {
  std::fill(out, out + width, 0.0f);
  for (int64_t j = 0; j < s; ++j)
    if (weights[j] != 0)
      for (int64_t c = 0; c < width; ++c) out[c] += weights[j] * v[j * width + c];
}

/// Attention with the weights as a tensor, for a term of the values: a few queries at a time.
Tensor attention_by_weights(const Tensor& q_THD,
                            const std::vector<KeyValues>& kv,
                            int64_t start,
                            ScoreOptions options) {
  const int64_t t = q_THD.size(0), h = q_THD.size(1);
  const auto heads_first = [&](const auto& part) {
    std::vector<Tensor> parts;
    for (const KeyValues& one : kv) parts.push_back(from_kv_rows(part(one), at::kFloat));
    const Tensor all = at::cat(parts).transpose(0, 1);
    return all.repeat_interleave(h / all.size(0), 0).contiguous();
  };
  const Tensor k_HSD = heads_first([](const KeyValues&one) { return one.k_SGD; }),
               v_HSD = heads_first([](const KeyValues&one) { return one.v_SGD; });
  const Tensor q_HTD = q_THD.transpose(0, 1).contiguous(), k_SHD = k_HSD.transpose(0, 1);
  const int64_t s = k_HSD.size(1), width = v_HSD.size(2), first = kv.front().first;
  const Tensor sinks =
      options.sinks_H.defined() ? options.sinks_H.to(at::kFloat).contiguous() : options.sinks_H;
  // the pattern counts keys in the softmax below
  ScoreOptions of_scores = options;
  of_scores.visibility = nullptr;
  std::vector<Tensor> out;
  for (int64_t begin = 0; begin < t; begin += kQueriesPerBias) {
    const int64_t n = std::min(kQueriesPerBias, t - begin);
    const Tensor q_HND = q_HTD.narrow(1, begin, n).contiguous();
    Tensor scores = row_products(q_HND, k_HSD) * options.scale;
    if (options.softcap > 0) scores = softcap(scores, options.softcap);
    scores = scores + added_scores(q_THD, k_SHD, s, start, first, begin, n, of_scores);
    const Tensor times = visible_keys(start + begin, n, first, s, options, h, at::kCPU)
                             .to(at::kFloat)
                             .expand({h, n, s})
                             .contiguous();
    Tensor weights = at::empty({h, n, s}, q_THD.options()),
           sums = at::empty({1, h, n, width}, q_THD.options());
    for (int64_t row = 0; row < h * n; ++row) {
      float* of_row = weights.data_ptr<float>() + row * s;
      softmax_row(scores.const_data_ptr<float>() + row * s, times.const_data_ptr<float>() + row * s,
                  sinks.defined() ? sinks.const_data_ptr<float>() + row / n : nullptr, s, of_row);
      weighted_sum(of_row, v_HSD.const_data_ptr<float>() + row / n * s * width, s, width,
                   sums.data_ptr<float>() + row * width);
    }
    const Tensor q = q_HND.unsqueeze(0), k = k_HSD.unsqueeze(0), w = weights.unsqueeze(0);
    const ScoreBlock block{q, k, start + begin, first, options.scale};
    out.push_back(sums + options.term.values(w, block, options.term.inputs));
  }
  return at::cat(out, 2).squeeze(0).transpose(0, 1);
}

}  // namespace

Tensor attention_kernel(const Tensor& q_THD,
                        const std::vector<KeyValues>& kv,
                        int64_t start,
                        const ScoreOptions& options) {
  if (options.term.values) return attention_by_weights(q_THD, kv, start, options);
  // the kernel reads far queries with the strides of q
  const Tensor q = options.far_q.defined() ? q_THD.contiguous() : dense_rows(q_THD);
  const Held held = held_keys(kv);
  Tensor out = at::empty({q.size(0), q.size(1), held.width}, q.options());
  kernels::Attention a;
  a.T = q.size(0), a.H = q.size(1), a.K = q.size(2);
  a.q = q.const_data_ptr<float>();
  a.q_token_stride = q.stride(0), a.q_head_stride = q.stride(1);
  a.out = out.data_ptr<float>();
  a.out_token_stride = out.stride(0), a.out_head_stride = out.stride(1);
  a.first_position = start;

  a.kv = held.view();
  a.G = held.heads, a.V = held.width;

  a.causal = options.causal;
  // the kernel's symmetric window is |query - key| < window
  a.window = options.window == 0 ? 0 : options.causal ? options.window : options.window / 2 + 1;
  a.scale = static_cast<float>(options.scale);
  a.softcap = static_cast<float>(options.softcap);
  const Tensor sinks =
      options.sinks_H.defined() ? options.sinks_H.to(at::kFloat).contiguous() : Tensor();
  if (sinks.defined()) a.sinks = sinks.const_data_ptr<float>();
  a.visible = options.visibility.get();
  const Tensor far_q = options.far_q.defined() ? options.far_q.contiguous() : Tensor();
  if (far_q.defined()) {
    require(options.visibility != nullptr && !options.term, "attention",
            "far queries need a pattern and no term");
    a.far_q = far_q.const_data_ptr<float>();
    a.far_end = options.far_end;
  }
  if (!options.term) {
    kernels::attend(a);
    return out;
  }
  // the bias is made for a few queries at a time: memory stays linear in the keys
  const Tensor keys = options.term.bias ? joined_keys(kv) : Tensor();
  const int64_t first = a.kv.begin(), n_keys = a.kv.end() - first;
  const float* q_data = a.q;
  float* out_data = a.out;
  for (int64_t begin = 0, n = a.T; begin < n; begin += kQueriesPerBias) {
    a.T = std::min(kQueriesPerBias, n - begin);
    const Tensor bias = added_scores(q, keys, n_keys, start, first, begin, a.T, options);
    a.bias = bias.const_data_ptr<float>();
    a.bias_head_stride = bias.size(0) == 1 ? 0 : bias.stride(0);
    a.bias_query_stride = bias.stride(1);
    a.q = q_data + begin * a.q_token_stride;
    a.out = out_data + begin * a.out_token_stride;
    a.first_position = start + begin;
    kernels::attend(a);
  }
  return out;
}

}  // namespace tessera::ops
