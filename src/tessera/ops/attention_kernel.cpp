#include "tessera/kernels/attention.h"

#include <cmath>
#include <limits>
#include <optional>

#include "tessera/ops/attention.h"
#include "tessera/ops/pointwise.h"

namespace tessera::ops {
namespace {

/// Slots of `b` minus slots of `a` in one buffer of entries, or none where they are not of one.
std::optional<int64_t> slots_apart(const Tensor& a, const Tensor& b) {
  if (!a.storage().is_alias_of(b.storage()) || a.strides() != b.strides()) return std::nullopt;
  const int64_t floats = b.storage_offset() - a.storage_offset();
  if (floats % a.stride(0) != 0) return std::nullopt;
  return floats / a.stride(0);
}

/// The entries of all parts as the kernel reads them: where they lie, or copied together.
struct Held {
  Tensor k, v;
  kernels::KeyValueView view;
};

/// Parts as a ring cache hands them out: perhaps the kept first entries, then one or two spans.
bool lie_in_ring(const std::vector<KeyValues>& kv, size_t ring, Held& held) {
  const KeyValues& oldest = kv[ring];
  if (kv.size() - ring > 2 || oldest.k_SGD.stride(2) != 1 || oldest.v_SGD.stride(2) != 1)
    return false;
  // the base is what lies first in the buffer: the kept entries, else the newer of two spans
  const KeyValues& base = kv[ring == 1 ? 0 : kv.size() - 1];
  const int64_t lead = ring == 1 ? kv[0].k_SGD.size(0) : 0;
  const auto slot = slots_apart(base.k_SGD, oldest.k_SGD),
             v_slot = slots_apart(base.v_SGD, oldest.v_SGD);
  if (!slot || v_slot != slot || *slot < lead) return false;
  held.k = base.k_SGD, held.v = base.v_SGD;
  held.view.lead = lead;
  held.view.first_slot = *slot - lead;
  if (kv.size() - ring == 1) {
    held.view.capacity = held.view.first_slot + oldest.k_SGD.size(0);
    return true;
  }
  const auto newer = slots_apart(base.k_SGD, kv.back().k_SGD),
             v_newer = slots_apart(base.v_SGD, kv.back().v_SGD);
  held.view.capacity = held.view.first_slot + oldest.k_SGD.size(0);
  return newer && v_newer == newer && *newer == lead;
}

Tensor dense_rows(const Tensor& t) {
  return t.stride(2) == 1 ? t : t.contiguous();
}

Held held_keys(const std::vector<KeyValues>& kv) {
  // a gap after the first part: entries that a cache keeps for ever
  const size_t ring =
      kv.size() > 1 && kv[1].first > kv[0].first + kv[0].k_SGD.size(0) ? size_t{1} : size_t{0};
  Held held;
  int64_t count = 0;
  for (size_t i = ring; i < kv.size(); ++i) count += kv[i].k_SGD.size(0);
  if (kv.size() == 1) {
    held.k = dense_rows(kv[0].k_SGD);
    held.v = dense_rows(kv[0].v_SGD);
  } else if (!lie_in_ring(kv, ring, held)) {
    std::vector<Tensor> keys, values;
    for (const KeyValues& part : kv) {
      keys.push_back(part.k_SGD);
      values.push_back(part.v_SGD);
    }
    held = {};
    held.k = at::cat(keys);
    held.v = at::cat(values);
    held.view.lead = ring == 1 ? kv[0].k_SGD.size(0) : 0;
  }
  kernels::KeyValueView& view = held.view;
  view.k = held.k.const_data_ptr<float>();
  view.v = held.v.const_data_ptr<float>();
  view.k_token_stride = held.k.stride(0), view.k_head_stride = held.k.stride(1);
  view.v_token_stride = held.v.stride(0), view.v_head_stride = held.v.stride(1);
  view.first_position = kv[ring].first;
  view.count = count;
  return held;
}

constexpr int64_t kQueriesPerBias = 64;

/// Queries [begin, begin + t) of the call: what the term adds to their scores, [H or 1, t, S].
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
  // the kernel reads far queries with the strides of q
  const Tensor q = options.far_q.defined() ? q_THD.contiguous() : dense_rows(q_THD);
  Tensor out = at::empty({q.size(0), q.size(1), kv.front().v_SGD.size(2)}, q.options());
  kernels::Attention a;
  a.T = q.size(0), a.H = q.size(1), a.K = q.size(2);
  a.q = q.const_data_ptr<float>();
  a.q_token_stride = q.stride(0), a.q_head_stride = q.stride(1);
  a.out = out.data_ptr<float>();
  a.out_token_stride = out.stride(0), a.out_head_stride = out.stride(1);
  a.first_position = start;

  const Held held = held_keys(kv);
  a.kv = held.view;
  a.G = held.k.size(1), a.V = held.v.size(2);

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
  std::vector<Tensor> keys;
  for (const KeyValues& part : kv) keys.push_back(part.k_SGD);
  const Tensor dense_k = keys.size() == 1 ? keys[0] : at::cat(keys);
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
