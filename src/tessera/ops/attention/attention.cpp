#include "tessera/ops/attention/attention.h"

#include <limits>
#include <optional>

#include "tessera/kernels/weights/matmul.h"
#include "tessera/ops/attention/attention_form.h"
#include "tessera/ops/attention/flash_attention.h"
#include "tessera/ops/attention/fused_attention.h"
#include "tessera/ops/attention/kv_rows.h"
#include "tessera/ops/attention/recorded_attention.h"
#include "tessera/ops/attention/scattered_attention.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/form.h"
#include "tessera/ops/side_by_side.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
/// Beyond a number of scores they are computed block by block, so that memory stays linear.
bool worth_blocks(int64_t scores, const ScoreOptions& options) {
  return scores * options.term.numbers > int64_t{1} << 20;
}
int64_t queries_of_block(const ScoreOptions& options) {
  return std::max<int64_t>(16, 64 / options.term.numbers);
}

Tensor joined(const std::vector<Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
}

/// q . k, for keys below far_end with the other queries.
Tensor products(const Tensor& q,
                const Tensor& k,
                const std::vector<kernels::KeyRange>& held,
                const ScoreOptions& options) {
  int64_t far = 0;
  if (options.far_q.defined())
    for (const kernels::KeyRange& range : held)
      far += std::max<int64_t>(0, std::min(range.end, options.far_end) - range.begin);
  if (far == 0) return ops::product(q, k.transpose(-1, -2));
  const Tensor far_q = options.far_q.to(q.scalar_type());
  return at::cat({ops::product(far_q, k.narrow(2, 0, far).transpose(-1, -2)),
                  ops::product(q, k.narrow(2, far, k.size(2) - far).transpose(-1, -2))},
                 -1);
}

/// The log of the rows' sums of exponentials; -inf, without a gradient, where all are hidden.
Tensor log_sum(const Tensor& scores) {
  const Tensor none = scores.detach().amax(-1, true).eq(kMinusInfinity);
  return at::logsumexp(scores.masked_fill(none, 0), -1)
      .masked_fill(none.squeeze(-1), kMinusInfinity);
}

ScoreOptions heads_first(ScoreOptions options, int64_t tokens, int64_t heads) {
  if (options.far_q.defined()) options.far_q = options.far_q.transpose(tokens, heads);
  return options;
}

}  // namespace

Tensor added_by_term(const ScoreTerm& term, const ScoreBlock& block) {
  const auto type = wide(block.q_BHTD);
  if (block.q_BHTD.scalar_type() != type) {
    const Tensor q = block.q_BHTD.to(type), k = block.k_BHSD.to(type);
    return added_by_term(term, {q, k, block.first_query, block.first_key, block.scale,
                                block.query_step, block.key_step});
  }
  Tensor sum;
  if (term.bias_HR.defined()) {
    const Tensor table_HR = term.bias_HR.to(block.q_BHTD.device(), type);
    const auto on = table_HR.options().dtype(at::kLong);
    const int64_t t = block.q_BHTD.size(2), s = block.k_BHSD.size(2);
    const Tensor distance = (at::arange(s, on) * block.key_step + block.first_key).unsqueeze(0) -
                            (at::arange(t, on) * block.query_step + block.first_query).unsqueeze(1);
    const Tensor index = (distance + term.zero).clamp(0, term.bias_HR.size(1) - 1);
    sum = table_HR.index_select(1, index.flatten()).reshape({1, -1, t, s});
  }
  if (term.bias) {
    const Tensor bias = term.bias(block, term.inputs).to(type);
    sum = sum.defined() ? sum + bias : bias;
  }
  return sum;
}

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
        for (const kernels::KeyRange& range : who.ranges(h, start + i, start + i + 1)) {
          const int64_t begin = std::max(range.begin, first), end = std::min(range.end, first + s);
          if (begin < end)
            who.counts(h, {start + i, start + i + 1}, {begin, end},
                       out + (h * t + i) * s + begin - first, 0);
        }
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
                       const ScoreOptions& options) {
  return attention_plain(q_BHTD, k_BGSD, v_BGSD, start, {{first, first + k_BGSD.size(2)}}, options);
}

namespace {

/// visible_keys() from the predicate alone, one pair at a time: a pattern's ranges and rows of
/// counts, which the fast forms trust, have no say.
Tensor defined_keys(int64_t start,
                    int64_t t,
                    int64_t first,
                    int64_t s,
                    const ScoreOptions& options,
                    int64_t heads,
                    at::Device device) {
  if (!options.visibility) return visible_keys(start, t, first, s, options, heads, device);
  Tensor count = at::empty({heads, t, s}, at::kChar);
  auto* out = count.data_ptr<int8_t>();
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < t; ++i)
      for (int64_t j = 0; j < s; ++j)
        *out++ = static_cast<int8_t>(options.visibility->multiplicity(h, start + i, first + j));
  return count.to(device);
}

using KeyCounts = decltype(&visible_keys);

/// The formula, with keys counted by `counted`; `lse`, where given, receives the log of each row's
/// sum of exponentials.
Tensor defined_attention(KeyCounts counted,
                         const Tensor& q_BHTD,
                         const Tensor& k_BGSD,
                         const Tensor& v_BGSD,
                         int64_t start,
                         const std::vector<kernels::KeyRange>& held,
                         const ScoreOptions& options,
                         Tensor* lse) {
  const auto type = wide(q_BHTD);
  const int64_t h = q_BHTD.size(1), t = q_BHTD.size(2), s = k_BGSD.size(2);
  const int64_t per_group = h / k_BGSD.size(1);
  const auto for_heads = [&](const Tensor& x) { return repeat_each(x.to(type), per_group, 1); };
  const Tensor q = q_BHTD.to(type), k = for_heads(k_BGSD), v = for_heads(v_BGSD);

  Tensor scores = products(q, k, held, options) * options.scale;
  if (options.softcap > 0) scores = options.softcap * at::tanh(scores / options.softcap);
  // position terms and visibility, range by range of positions
  std::vector<Tensor> terms, counts;
  int64_t row = 0;
  for (const kernels::KeyRange& range : held) {
    const int64_t n = range.end - range.begin;
    const Tensor k_range = k.narrow(2, row, n);
    const Tensor added =
        added_by_term(options.term, {q, k_range, start, range.begin, options.scale});
    if (added.defined()) terms.push_back(added);
    counts.push_back(counted(start, t, range.begin, n, options, h, q.device()));
    row += n;
  }
  if (!terms.empty()) scores = scores + joined(terms).to(type);

  const Tensor count = joined(counts);
  const Tensor hidden = count.eq(0);
  // on another device than the CPU, to look would wait for it: the result is the same either way
  const auto any = [](const Tensor& which) { return !on_host(which) || which.any().item<bool>(); };
  if (options.visibility && any(count.gt(1))) scores = scores + count.to(type).clamp_min(1).log();
  scores = scores.masked_fill(hidden, kMinusInfinity);
  const bool sinks = options.sinks_H.defined();
  if (sinks)
    scores = at::cat({scores, expanded(options.sinks_H.to(type).reshape({1, h, 1, 1}),
                                       {scores.size(0), h, t, 1})},
                     -1);
  if (lse != nullptr) *lse = log_sum(scores);
  Tensor weights;
  if (sinks) {
    weights = ops::softmax(scores).narrow(-1, 0, s);
  } else {
    weights = ops::softmax(scores);
    // a row without keys: all its weights are 0, never NaN
    if (any(hidden.all(-1))) weights = weights.masked_fill(hidden, 0);
  }
  if (options.dropout) weights = options.dropout(weights);
  Tensor out = ops::product(weights, v);
  if (options.term.values) {
    row = 0;
    for (const kernels::KeyRange& range : held) {
      const int64_t n = range.end - range.begin;
      out = out + options.term.values(weights.narrow(3, row, n),
                                      {q, k.narrow(2, row, n), start, range.begin, options.scale},
                                      options.term.inputs);
      row += n;
    }
  }
  return out.to(q_BHTD.scalar_type());
}

}  // namespace

Tensor attention_plain(const Tensor& q_BHTD,
                       const Tensor& k_BGSD,
                       const Tensor& v_BGSD,
                       int64_t start,
                       const std::vector<kernels::KeyRange>& held,
                       const ScoreOptions& options) {
  return defined_attention(defined_keys, q_BHTD, k_BGSD, v_BGSD, start, held, options, nullptr);
}

Tensor attention_of_block(const Tensor& q_BHTD,
                          const Tensor& k_BGSD,
                          const Tensor& v_BGSD,
                          int64_t start,
                          const std::vector<kernels::KeyRange>& held,
                          const ScoreOptions& options) {
  return defined_attention(visible_keys, q_BHTD, k_BGSD, v_BGSD, start, held, options, nullptr);
}

namespace {

/// Far queries by flash attention: heads twice as wide, [far q, q] against [k, 0] for far keys and
/// [0, k] for the others.
Tensor far_flash_attention(const Tensor& q_BTHD,
                           const Tensor& k_BSGD,
                           const Tensor& v_BSGD,
                           int64_t start,
                           int64_t first,
                           ScoreOptions options) {
  const Tensor far_q = options.far_q.reshape(q_BTHD.sizes());
  options.far_q = Tensor();
  const int64_t d = q_BTHD.size(3), s = k_BSGD.size(1),
                far = std::clamp<int64_t>(options.far_end - first, 0, s);
  const Tensor k = at::cat({at::constant_pad_nd(k_BSGD.narrow(1, 0, far), {0, d}),
                            at::constant_pad_nd(k_BSGD.narrow(1, far, s - far), {d, 0})},
                           1);
  return flash_attention(at::cat({far_q, q_BTHD}, 3), k, v_BSGD, start, first, options);
}

/// Keys that follow each other by a form whose memory is linear in them; nothing where the form is
/// another.
std::optional<Tensor> linear_memory_attention(AttentionForm form,
                                              const Tensor& q_BTHD,
                                              const Tensor& k_BSGD,
                                              const Tensor& v_BSGD,
                                              int64_t start,
                                              int64_t first,
                                              const ScoreOptions& options) {
  if (q_BTHD.size(0) == 0) return std::nullopt;
  switch (form) {
    case AttentionForm::lists:
      return scattered_attention(q_BTHD, k_BSGD, v_BSGD, start, first, options);
    case AttentionForm::tiles:
      return flash_attention(q_BTHD, k_BSGD, v_BSGD, start, first, options);
    case AttentionForm::far_tiles:
      return far_flash_attention(q_BTHD, k_BSGD, v_BSGD, start, first, options);
    case AttentionForm::fused:
      if (!every_query_sees_a_key(start, q_BTHD.size(1), first, k_BSGD.size(1), options.causal,
                                  options.window))
        return std::nullopt;
      return fused_attention(q_BTHD, k_BSGD, v_BSGD, start, first, options);
    default:
      return std::nullopt;
  }
}

}  // namespace

PartialAttention attention_part(const Tensor& q_BHTD,
                                const Tensor& k_BGSD,
                                const Tensor& v_BGSD,
                                int64_t start,
                                int64_t first,
                                const ScoreOptions& options) {
  PartialAttention part;
  part.out = defined_attention(visible_keys, q_BHTD, k_BGSD, v_BGSD, start,
                               {{first, first + k_BGSD.size(2)}}, options, &part.lse);
  return part;
}

Tensor attention_equal(const Tensor& q_BTHD,
                       const Tensor& k_BTGD,
                       const Tensor& v_BTGD,
                       const ScoreOptions& given) {
  const AttentionForm form = attention_form(asks_of(q_BTHD, given) | ask::together);
  if (const auto out = linear_memory_attention(form, q_BTHD, k_BTGD, v_BTGD, 0, 0, given))
    return *out;
  const ScoreOptions options = heads_first(given, 1, 2);
  const int64_t b = q_BTHD.size(0), t = q_BTHD.size(1), heads = q_BTHD.size(2);
  const Tensor q = q_BTHD.transpose(1, 2), k = k_BTGD.transpose(1, 2), v = v_BTGD.transpose(1, 2);
  if (!worth_blocks(b * heads * t * t, options))
    return attention_plain(q, k, v, 0, 0, options).transpose(1, 2);
  return attention_chunked(q, k, v, 0, {{0, t}}, options, queries_of_block(options))
      .transpose(1, 2);
}

Tensor attention(const Tensor& q_THD,
                 const std::vector<KeyValues>& given,
                 int64_t start,
                 const ScoreOptions& options) {
  if (const std::vector<AttentionCall> calls{{q_THD, given, start, options}}; is_recorded(calls))
    return recorded_attention(calls);
  uint32_t asks = asks_of(q_THD, options);
  for (size_t i = 0; i + 1 < given.size(); ++i)
    if (given[i].first + given[i].k_SGD.size(0) != given[i + 1].first) asks |= ask::gaps;
  const AttentionForm form = attention_form(asks);
  if (form == AttentionForm::kernel) return attention_kernel(q_THD, given, start, options);
  if (form == AttentionForm::kernel_of_weights)
    return attention_kernel_of_weights(q_THD, given, start, options);
  std::vector<KeyValues> kv;
  for (const KeyValues& part : given) {
    const auto numbers = [&](const Tensor& x) {
      // of fewer bits than the queries: as a state stores them
      return x.element_size() < q_THD.element_size() ? from_kv_rows(x, q_THD.scalar_type()) : x;
    };
    kv.push_back({numbers(part.k_SGD), numbers(part.v_SGD), part.first});
  }
  // a whole document: one sequence of a batch
  if (kv.size() == 1 && kv[0].first == 0 && start == 0 && kv[0].k_SGD.size(0) == q_THD.size(0) &&
      !documents_apart(q_THD)) {
    ScoreOptions batched = options;
    if (batched.far_q.defined()) batched.far_q = batched.far_q.unsqueeze(0);
    return attention_equal(q_THD.unsqueeze(0), kv[0].k_SGD.unsqueeze(0), kv[0].v_SGD.unsqueeze(0),
                           batched)
        .squeeze(0);
  }
  std::vector<Tensor> keys, values;
  std::vector<kernels::KeyRange> held;
  for (const KeyValues& part : kv) {
    keys.push_back(part.k_SGD);
    values.push_back(part.v_SGD);
    const kernels::KeyRange range{part.first, part.first + part.k_SGD.size(0)};
    if (!held.empty() && held.back().end == range.begin)
      held.back().end = range.end;
    else
      held.push_back(range);
  }
  const Tensor k_SGD = keys.size() == 1 ? keys[0] : at::cat(keys),
               v_SGD = values.size() == 1 ? values[0] : at::cat(values);
  if (const auto out = linear_memory_attention(form, q_THD.unsqueeze(0), k_SGD.unsqueeze(0),
                                               v_SGD.unsqueeze(0), start, held[0].begin, options))
    return out->squeeze(0);
  const Tensor q = q_THD.transpose(0, 1).unsqueeze(0), k = k_SGD.transpose(0, 1).unsqueeze(0),
               v = v_SGD.transpose(0, 1).unsqueeze(0);
  ScoreOptions batched = heads_first(options, 0, 1);
  if (batched.far_q.defined()) batched.far_q = batched.far_q.unsqueeze(0);
  const bool many = worth_blocks(q.size(1) * q.size(2) * k.size(2), batched);
  const Tensor out =
      many ? attention_chunked(q, k, v, start, held, batched, queries_of_block(batched))
           : attention_plain(q, k, v, start, held, batched);
  return out.squeeze(0).transpose(0, 1);
}

bool may_go_side_by_side(const Tensor& q, const ScoreOptions& options) {
  return documents_apart(q) && !options.dropout && !options.term.bias && !options.term.values;
}

Tensor attention(const std::vector<AttentionCall>& calls) {
  if (is_recorded(calls)) return recorded_attention(calls);
  std::vector<Tensor> out(calls.size());
  const auto compute = [&](size_t i) {
    out[i] = attention(calls[i].q_THD, calls[i].kv, calls[i].start, calls[i].options);
  };
  if (std::all_of(calls.begin(), calls.end(),
                  [](const AttentionCall& c) { return may_go_side_by_side(c.q_THD, c.options); })) {
    std::vector<int64_t> scores;
    for (const AttentionCall& c : calls) {
      int64_t keys = 0;
      for (const KeyValues& part : c.kv) keys += part.k_SGD.size(0);
      scores.push_back(c.q_THD.size(0) * keys);
    }
    side_by_side(scores, compute);
  } else {
    for (size_t i = 0; i < calls.size(); ++i) compute(i);
  }
  return out.size() == 1 ? out[0] : at::cat(out);
}

Tensor row_products(const Tensor& x, const Tensor& w) {
  if (!kernel_serves(Op::row_products, x)) return ops::product(x, w.transpose(-1, -2));
  const int64_t t = x.size(-2), d = x.size(-1), s = w.size(-2);
  auto batch = at::infer_size(x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)),
                              w.sizes().slice(0, static_cast<size_t>(w.dim() - 2)));
  // items one after another, their rows without gaps
  const auto flat = [&](const Tensor& m) {
    auto sizes = batch;
    sizes.push_back(m.size(-2));
    sizes.push_back(d);
    const Tensor items = m.expand(sizes).reshape({-1, m.size(-2), d});
    const bool dense = items.stride(2) == 1 && items.stride(1) == d;
    return dense ? items : items.contiguous();
  };
  const Tensor a = flat(x), b = flat(w);
  Tensor y = at::empty({a.size(0), t, s}, x.options());
  for (int64_t i = 0; i < a.size(0); ++i)
    kernels::matmul(a.const_data_ptr<float>() + i * a.stride(0), t, d, d, DType::f32,
                    b.const_data_ptr<float>() + i * b.stride(0), s, nullptr,
                    y.data_ptr<float>() + i * t * s, s);
  batch.push_back(t);
  batch.push_back(s);
  return y.reshape(batch);
}

}  // namespace tessera::ops
