#include "tessera/kernels/attention.h"

#include <cmath>
#include <limits>

#include "tessera/ops/attention.h"
#include "tessera/ops/pointwise.h"

namespace tessera::ops {
namespace {

/// Whether two spans are the end and the beginning of one ring.
bool wraps(const KeyValues& a, const KeyValues& b) {
  return a.k_SGD.storage().is_alias_of(b.k_SGD.storage()) && b.k_SGD.storage_offset() == 0 &&
         a.k_SGD.stride(0) == b.k_SGD.stride(0) &&
         a.k_SGD.storage_offset() % a.k_SGD.stride(0) == 0;
}

Tensor dense_rows(const Tensor& t) {
  return t.stride(2) == 1 ? t : t.contiguous();
}

constexpr int64_t kQueriesPerBias = 64;

/// Queries [begin, begin + t) of the call: what the kernel adds to their scores, [H or 1, t, S];
/// minus infinity where the pattern hides a key.
Tensor added_scores(const Tensor& q_THD,
                    const Tensor& k_SGD,
                    int64_t start,
                    int64_t first,
                    int64_t begin,
                    int64_t t,
                    const ScoreOptions& options) {
  const int64_t h = q_THD.size(1), s = k_SGD.size(0), query = start + begin;
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
  if (options.visibility) {
    const Tensor count = visible_keys(query, t, first, s, options, h, at::kCPU);
    const Tensor times = (count.dim() == 2 ? count.unsqueeze(0) : count).to(at::kFloat);
    bias = bias + times.log();  // log 0 hides, log 1 changes nothing
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
    for (const KeyValues& one : kv) parts.push_back(part(one));
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
    scores = scores + added_scores(q_THD, k_SHD, start, first, begin, n, of_scores);
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
  const Tensor q = q_THD.contiguous();
  Tensor out = at::empty({q.size(0), q.size(1), kv.front().v_SGD.size(2)}, q.options());
  kernels::Attention a;
  a.T = q.size(0), a.H = q.size(1), a.K = q.size(2);
  a.q = q.const_data_ptr<float>();
  a.q_token_stride = q.stride(0), a.q_head_stride = q.stride(1);
  a.out = out.data_ptr<float>();
  a.out_token_stride = out.stride(0), a.out_head_stride = out.stride(1);
  a.first_position = start;

  Tensor k, v;
  int64_t first_slot = 0, count = 0, capacity = 0;
  for (const KeyValues& part : kv) count += part.k_SGD.size(0);
  if (kv.size() == 1) {
    k = dense_rows(kv[0].k_SGD);
    v = dense_rows(kv[0].v_SGD);
  } else if (kv.size() == 2 && wraps(kv[0], kv[1])) {
    k = kv[1].k_SGD;
    v = kv[1].v_SGD;
    first_slot = kv[0].k_SGD.storage_offset() / kv[0].k_SGD.stride(0);
    capacity = first_slot + kv[0].k_SGD.size(0);
  } else {
    std::vector<Tensor> keys, values;
    for (const KeyValues& part : kv) {
      keys.push_back(part.k_SGD);
      values.push_back(part.v_SGD);
    }
    k = at::cat(keys);
    v = at::cat(values);
  }
  a.G = k.size(1), a.V = v.size(2);
  a.kv.k = k.const_data_ptr<float>();
  a.kv.v = v.const_data_ptr<float>();
  a.kv.k_token_stride = k.stride(0), a.kv.k_head_stride = k.stride(1);
  a.kv.v_token_stride = v.stride(0), a.kv.v_head_stride = v.stride(1);
  a.kv.first_position = kv.front().first;
  a.kv.count = count;
  a.kv.first_slot = first_slot;
  a.kv.capacity = capacity;

  a.causal = options.causal;
  // the kernel's symmetric window is |query - key| < window
  a.window = options.window == 0 ? 0 : options.causal ? options.window : options.window / 2 + 1;
  a.scale = static_cast<float>(options.scale);
  a.softcap = static_cast<float>(options.softcap);
  const Tensor sinks =
      options.sinks_H.defined() ? options.sinks_H.to(at::kFloat).contiguous() : Tensor();
  if (sinks.defined()) a.sinks = sinks.const_data_ptr<float>();
  if (!options.visibility && !options.term) {
    kernels::attend(a);
    return out;
  }
  if (options.visibility) a.causal = false, a.window = 0;
  // the bias is made for a few queries at a time: memory stays linear in the keys
  const Tensor dense_k = kv.size() == 1 ? k : at::cat({kv[0].k_SGD, kv[1].k_SGD});
  const float* q_data = a.q;
  float* out_data = a.out;
  for (int64_t begin = 0, n = a.T; begin < n; begin += kQueriesPerBias) {
    a.T = std::min(kQueriesPerBias, n - begin);
    const Tensor bias = added_scores(q, dense_k, start, a.kv.first_position, begin, a.T, options);
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
