#include "tessera/kernels/attention/attention.h"

#include <cmath>
#include <limits>

#include "tessera/kernels/attention/key_weights.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/documents_attention.h"
#include "tessera/ops/attention/key_weights.h"
#include "tessera/ops/attention/kv_rows.h"
#include "tessera/ops/attention/query_blocks.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/side_by_side.h"

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

/// One side of all parts as numbers, a head for each of `heads` query heads: [H, S, D].
Tensor heads_of(const std::vector<KeyValues>& kv, Tensor KeyValues::*side, int64_t heads) {
  std::vector<Tensor> parts;
  for (const KeyValues& one : kv) parts.push_back(from_kv_rows(one.*side, at::kFloat));
  const Tensor all = (parts.size() == 1 ? parts[0] : at::cat(parts)).transpose(0, 1);
  return (all.size(0) == heads ? all : all.repeat_interleave(heads / all.size(0), 0)).contiguous();
}

constexpr int64_t kQueriesPerBias = 64;

/// A table by distance for queries [start, start + t) and keys [first, first + s): row h holds the
/// distances first - (start + t - 1) .. first + s - 1 - start, [H or 1, t + s - 1]. The row of a
/// query begins one number before that of the query before it.
Tensor distance_rows(const ScoreTerm& term, int64_t start, int64_t t, int64_t first, int64_t s) {
  const Tensor table = term.bias_HR.to(at::kFloat).contiguous();
  const int64_t heads = table.size(0), r = table.size(1), n = t + s - 1;
  Tensor rows = at::empty({heads, n}, table.options());
  const int64_t lowest = term.zero + first - (start + t - 1);
  // columns before, in and after the table
  const int64_t before = std::clamp<int64_t>(-lowest, 0, n),
                end = std::clamp<int64_t>(r - lowest, before, n);
  for (int64_t h = 0; h < heads; ++h) {
    const float* from = table.const_data_ptr<float>() + h * r;
    float* to = rows.data_ptr<float>() + h * n;
    std::fill(to, to + before, from[0]);
    if (end > before) std::copy_n(from + lowest + before, end - before, to + before);
    std::fill(to + end, to + n, from[r - 1]);
  }
  return rows;
}

/// What a term adds to the scores of queries [begin, begin + t) of the call with `s` keys,
/// [H or 1, t, S]; k_HSD, all heads of keys, may be undefined where the term is of distances alone.
Tensor added_scores(const Tensor& q_THD,
                    const Tensor& k_HSD,
                    int64_t s,
                    int64_t start,
                    int64_t first,
                    int64_t begin,
                    int64_t t,
                    const ScoreOptions& options) {
  const int64_t query = start + begin;
  Tensor sum;
  if (options.term.bias_HR.defined()) {
    const Tensor rows = distance_rows(options.term, query, t, first, s);
    sum = rows.unfold(1, s, 1).flip(1);
  }
  if (options.term.bias) {
    const Tensor q = q_THD.narrow(0, begin, t).transpose(0, 1).unsqueeze(0);
    const Tensor k = k_HSD.unsqueeze(0);
    const Tensor more =
        options.term.bias({q, k, query, first, options.scale}, options.term.inputs).squeeze(0);
    sum = sum.defined() ? sum + more.to(at::kFloat) : more.to(at::kFloat);
  }
  return sum.contiguous();
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

/// The keys that some of queries [begin, begin + n) see, or one that none does.
kernels::KeyRange keys_seen(
    const ScoreOptions& options, int64_t heads, kernels::KeyRange held, int64_t begin, int64_t n) {
  const auto seen = key_ranges(options, heads, held, begin, begin + n);
  return seen.empty() ? kernels::KeyRange{held.begin, held.begin + 1}
                      : kernels::KeyRange{seen.front().begin, seen.back().end};
}

Tensor sinks_of(const ScoreOptions& options) {
  return options.sinks_H.defined() ? options.sinks_H.to(at::kFloat).contiguous() : Tensor();
}

/// A call for dense rows of q and out, but for its keys, its pattern and what joins its scores.
kernels::Attention described(const Tensor& q,
                             const Tensor& out,
                             const ScoreOptions& options,
                             const Tensor& sinks) {
  kernels::Attention a;
  a.T = q.size(0), a.H = q.size(1), a.K = q.size(2), a.V = out.size(2);
  a.q = q.const_data_ptr<float>();
  a.q_token_stride = q.stride(0), a.q_head_stride = q.stride(1);
  a.out = out.data_ptr<float>();
  a.out_token_stride = out.stride(0), a.out_head_stride = out.stride(1);
  a.causal = options.causal;
  // the kernel's symmetric window is |query - key| < window
  a.window = options.window == 0 ? 0 : options.causal ? options.window : options.window / 2 + 1;
  a.scale = static_cast<float>(options.scale);
  a.softcap = static_cast<float>(options.softcap);
  if (sinks.defined()) a.sinks = sinks.const_data_ptr<float>();
  return a;
}

}  // namespace

// A few queries at a time, with the keys that some of them see. What outlives a step lies in one
// tensor: between the memory of two steps it would keep the second from taking that of the first.
Tensor attention_kernel_of_weights(const Tensor& q_THD,
                                   const std::vector<KeyValues>& kv,
                                   int64_t start,
                                   const ScoreOptions& options) {
  const int64_t t = q_THD.size(0), h = q_THD.size(1);
  const Tensor all_k = heads_of(kv, &KeyValues::k_SGD, h),
               all_v = heads_of(kv, &KeyValues::v_SGD, h);
  const Tensor q_HTD = q_THD.transpose(0, 1).contiguous();
  const int64_t width = all_v.size(2), first = kv.front().first;
  const kernels::KeyRange held{first, first + all_k.size(1)};
  const Tensor sinks = sinks_of(options);
  // the pattern counts keys in the softmax below
  ScoreOptions of_scores = options;
  of_scores.visibility = nullptr;
  Tensor out_HTV = at::empty({h, t, width}, q_THD.options());
  for (int64_t begin = 0; begin < t; begin += kQueriesPerBias) {
    const int64_t n = std::min(kQueriesPerBias, t - begin);
    const auto keys = keys_seen(options, h, held, start + begin, n);
    const int64_t s = keys.end - keys.begin;
    const Tensor q_HND = q_HTD.narrow(1, begin, n).contiguous(),
                 k_HSD = all_k.narrow(1, keys.begin - first, s);
    Tensor scores = row_products(q_HND, k_HSD) * options.scale;
    if (options.softcap > 0) scores = softcap(scores, options.softcap);
    if (options.term.bias || options.term.bias_HR.defined())
      scores = scores + added_scores(q_THD, k_HSD, s, start, keys.begin, begin, n, of_scores);
    const Tensor times = visible_keys(start + begin, n, keys.begin, s, options, h, at::kCPU)
                             .to(at::kFloat)
                             .expand({h, n, s})
                             .contiguous();
    Tensor weights = at::empty({h, n, s}, q_THD.options()),
           sums = at::empty({1, h, n, width}, q_THD.options());
    for (int64_t row = 0; row < h * n; ++row) {
      float* of_row = weights.data_ptr<float>() + row * s;
      softmax_row(scores.const_data_ptr<float>() + row * s, times.const_data_ptr<float>() + row * s,
                  sinks.defined() ? sinks.const_data_ptr<float>() + row / n : nullptr, s, of_row);
      weighted_sum(of_row, all_v[row / n].const_data_ptr<float>() + (keys.begin - first) * width, s,
                   width, sums.data_ptr<float>() + row * width);
    }
    const Tensor q = q_HND.unsqueeze(0), k = k_HSD.unsqueeze(0), w = weights.unsqueeze(0);
    const ScoreBlock block{q, k, start + begin, keys.begin, options.scale};
    out_HTV.narrow(1, begin, n)
        .copy_((sums + options.term.values(w, block, options.term.inputs)).squeeze(0));
  }
  return out_HTV.transpose(0, 1);
}

namespace {

/// Also adds what the keys are given to `weights_GS` where that is no null pointer.
Tensor by_kernel(const Tensor& q_THD,
                 const std::vector<KeyValues>& kv,
                 int64_t start,
                 const ScoreOptions& options,
                 Tensor* weights_GS) {
  // the kernel reads far queries with the strides of q
  const Tensor q = options.far_q.defined() ? q_THD.contiguous() : dense_rows(q_THD);
  const Held held = held_keys(kv);
  Tensor out = at::empty({q.size(0), q.size(1), held.width}, q.options());
  const Tensor sinks = sinks_of(options);
  kernels::Attention a = described(q, out, options, sinks);
  a.first_position = start;
  a.kv = held.view();
  a.G = held.heads;
  a.visible = options.visibility.get();
  const Tensor far_q = options.far_q.defined() ? options.far_q.contiguous() : Tensor();
  if (far_q.defined()) {
    require(options.visibility != nullptr && !options.term, "attention",
            "far queries need a pattern and no term");
    a.far_q = far_q.const_data_ptr<float>();
    a.far_end = options.far_end;
  }
  if (a.T == 0) return out;
  if (weights_GS != nullptr) {
    Tensor softmax = at::empty({a.T, a.H, 2}, q.options());
    a.softmax = softmax.data_ptr<float>();
    kernels::attend(a);
    kernels::add_key_weights(a, weights_GS->data_ptr<float>(), weights_GS->stride(0));
    return out;
  }
  if (!options.term) {
    kernels::attend(a);
    return out;
  }
  const int64_t first = a.kv.begin(), keys_end = a.kv.end();
  if (!options.term.bias) {
    // a query's row of the table begins one number before that of the query before it
    const Tensor rows = distance_rows(options.term, start, a.T, first, keys_end - first);
    a.bias = rows.const_data_ptr<float>() + a.T - 1;
    a.bias_head_stride = rows.size(0) == 1 ? 0 : rows.size(1);
    a.bias_query_stride = -1;
    kernels::attend(a);
    return out;
  }
  // the bias is made for a few queries at a time and for the keys that some of them see: memory
  // stays linear in the keys, and what a pattern hides costs nothing
  const Tensor k_HSD = heads_of(kv, &KeyValues::k_SGD, a.H);
  const float* q_data = a.q;
  float* out_data = a.out;
  for (int64_t begin = 0, n = a.T; begin < n; begin += kQueriesPerBias) {
    a.T = std::min(kQueriesPerBias, n - begin);
    a.first_position = start + begin;
    const auto keys = keys_seen(options, a.H, {first, keys_end}, a.first_position, a.T);
    const Tensor bias = added_scores(q, k_HSD.narrow(1, keys.begin - first, keys.end - keys.begin),
                                     keys.end - keys.begin, start, keys.begin, begin, a.T, options);
    a.bias = bias.const_data_ptr<float>() - (keys.begin - first);
    a.bias_head_stride = bias.size(0) == 1 ? 0 : bias.stride(0);
    a.bias_query_stride = bias.stride(1);
    a.q = q_data + begin * a.q_token_stride;
    a.out = out_data + begin * a.out_token_stride;
    kernels::attend(a);
  }
  return out;
}

}  // namespace

Tensor attention_kernel(const Tensor& q_THD,
                        const std::vector<KeyValues>& kv,
                        int64_t start,
                        const ScoreOptions& options) {
  return by_kernel(q_THD, kv, start, options, nullptr);
}

Tensor attention_with_weights(const Tensor& q_THD,
                              const std::vector<KeyValues>& kv,
                              int64_t start,
                              const ScoreOptions& options,
                              Tensor& weights_GS) {
  int64_t keys = 0;
  for (const KeyValues& part : kv) {
    require(part.first == kv.front().first + keys, "attention", "a gap before the key at {}",
            part.first);
    keys += part.k_SGD.size(0);
  }
  const int64_t groups = kv.front().k_SGD.size(1);
  require(weights_GS.dim() == 2 && weights_GS.size(0) == groups && weights_GS.size(1) == keys &&
              !options.visibility && !options.term && !options.far_q.defined(),
          "attention", "sums of weights are for keys without gaps, patterns and terms");
  if (kernel_serves(Op::attention_with_weights, q_THD) && weights_GS.scalar_type() == at::kFloat &&
      weights_GS.stride(1) == 1)
    return by_kernel(q_THD, kv, start, options, &weights_GS);
  // the definition
  const auto by_head = [&](Tensor KeyValues::*side) {
    std::vector<Tensor> parts;
    for (const KeyValues& part : kv) parts.push_back(from_kv_rows(part.*side, q_THD.scalar_type()));
    return at::cat(parts).transpose(0, 1).unsqueeze(0);
  };
  const Tensor q = q_THD.transpose(0, 1).unsqueeze(0), k = by_head(&KeyValues::k_SGD);
  const std::vector<kernels::KeyRange> held{{kv.front().first, kv.front().first + keys}};
  {
    const at::NoGradGuard no_gradients;
    const Tensor each = at::eye(keys, k.options()).expand({1, groups, keys, keys});
    const Tensor weights =
        attention_of_block(q, k, each, start, held, options).reshape({groups, -1, keys});
    weights_GS.add_(ordered_sum(weights, {1}).to(weights_GS.options()));
  }
  return attention_of_block(q, k, by_head(&KeyValues::v_SGD), start, held, options)
      .squeeze(0)
      .transpose(0, 1);
}

Tensor attention_kernel_of_documents(const Tensor& q_NHD,
                                     const Tensor& k_NGD,
                                     const Tensor& v_NGD,
                                     const std::vector<int64_t>& lengths,
                                     const ScoreOptions& options) {
  require(!options.term && options.visibility == nullptr && !options.far_q.defined(), "attention",
          "documents side by side take no term, pattern or far queries");
  const Tensor q = dense_rows(q_NHD);
  const Held whole = held_keys({{k_NGD, v_NGD, 0}});
  Tensor out = at::empty({q.size(0), q.size(1), whole.width}, q.options());
  const Tensor sinks = sinks_of(options);
  kernels::Attention all = described(q, out, options, sinks);
  all.G = whole.heads;
  std::vector<int64_t> begins, costs;
  int64_t n = 0;
  for (const int64_t length : lengths) {
    begins.push_back(n);
    costs.push_back(length * length);
    n += length;
  }
  require(n == q.size(0) && n == k_NGD.size(0), "attention", "documents of {} tokens in all of {}",
          n, q.size(0));
  side_by_side(costs, [&](size_t i) {
    const int64_t begin = begins[i];
    if (lengths[i] == 0) return;
    kernels::KeySpan own = whole.spans[0];
    own.k = static_cast<const char*>(own.k) + begin * own.k_token_stride;
    own.v = static_cast<const char*>(own.v) + begin * own.v_token_stride;
    own.count = lengths[i];
    kernels::Attention a = all;
    a.T = lengths[i];
    a.q += begin * a.q_token_stride;
    a.out += begin * a.out_token_stride;
    a.kv = {&own, 1};
    kernels::attend(a);
  });
  return out;
}

}  // namespace tessera::ops
