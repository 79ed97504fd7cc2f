#include "tessera/ops/attention/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/threads.h"
#include "tessera/kernels/attention/indexer.h"
#include "tessera/ops/attention/indexer.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

constexpr int64_t kEntryQueriesAtOnce = 64;  // whose scores are in memory
constexpr double kUnread = -std::numeric_limits<double>::infinity();

/// The k greatest of n scores, ascending; of equal ones the earlier. `order` is work memory.
template <class T>
void best_entries(
    const T* scores, int64_t n, int64_t k, std::vector<int32_t>& order, int32_t* out) {
  if (n <= k) return std::iota(out, out + n, 0);
  order.resize(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t e) {
    return std::isnan(scores[e]) ? -std::numeric_limits<T>::infinity() : scores[e];
  };
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  std::sort(order.begin(), order.begin() + k);
  std::copy_n(order.begin(), k, out);
}

/// The entries of query i by the kernel.
void by_kernel_of_query(const EntryQueries& of,
                        const std::vector<kernels::IndexKeys>& spans,
                        int64_t i,
                        std::vector<float>& scores,
                        std::vector<int32_t>& order,
                        const Tensor& out) {
  const int64_t heads = of.q_THD.size(1), met = (of.start + i + 1) / of.every, k = out.size(1);
  int32_t* entries = out.data_ptr<int32_t>() + i * k;
  if (met <= k) return std::iota(entries, entries + met, 0);
  scores.resize(static_cast<size_t>(met));
  kernels::index_scores(
      {1, heads, of.q_THD.size(2), of.q_THD.const_data_ptr<float>() + i * of.q_THD.stride(0),
       of.w_TH.const_data_ptr<float>() + i * heads, static_cast<float>(of.scale), spans.data(),
       static_cast<int64_t>(spans.size()), met - 1, scores.data(), met});
  best_entries(scores.data(), met, k, order, entries);
}

/// Which of the first `e` entries queries [first, first + t) do not read, [t, e].
Tensor entries_hidden(
    const EntryQueries& of, const Tensor& entry_TK, int64_t first, int64_t t, int64_t e) {
  Tensor hidden = at::ones({t, e}, at::kBool);
  auto* out = hidden.data_ptr<bool>();
  for (int64_t i = 0; i < t; ++i, out += e) {
    const int64_t met = (of.start + first + i + 1) / of.every;
    if (!entry_TK.defined() || entry_TK.size(1) >= met) {
      std::fill(out, out + met, false);
      continue;
    }
    const int32_t* entries = entry_TK.const_data_ptr<int32_t>() + (first + i) * entry_TK.size(1);
    for (int64_t j = 0; j < entry_TK.size(1); ++j) out[entries[j]] = false;
  }
  return hidden.to(of.q_THD.device());
}

/// p of queries [first, first + t) over the first `e` entries, [t, e]; no gradient.
Tensor weights_of_entries(const EntryTarget& target,
                          int64_t every,
                          const Tensor& hidden_te,
                          int64_t first) {
  const at::NoGradGuard constant;
  const int64_t t = hidden_te.size(0), e = hidden_te.size(1), h = target.q_THK.size(1),
                from = std::max<int64_t>(0, first - target.window + 1);
  const auto type = wide(target.q_THK);
  const Tensor q_HtK = target.q_THK.narrow(0, first, t).to(type).transpose(0, 1),
               keys_SK = at::cat({target.entry_EK.narrow(0, 0, e),
                                  target.k_SK.narrow(0, from, first + t - from)})
                             .to(type);
  const auto on = q_HtK.options().dtype(at::kLong);
  const Tensor query = at::arange(first, first + t, on).unsqueeze(1),
               token = at::arange(from, first + t, on).unsqueeze(0),
               entry = at::arange(e, on).unsqueeze(0);
  const Tensor seen = at::cat({entry.lt(at::div(query + 1, every, "floor")),
                               token.le(query).logical_and(token.gt(query - target.window))},
                              1);
  Tensor scores = (product(q_HtK, keys_SK.t().expand({h, -1, -1})) * target.scale)
                      .masked_fill(seen.logical_not(), kUnread);
  if (target.sinks_H.defined())
    scores = at::cat(
        {scores, target.sinks_H.detach().to(scores.options()).reshape({h, 1, 1}).expand({h, t, 1})},
        -1);
  const Tensor sum = ordered_sum(softmax(scores).narrow(-1, 0, e), {0}).masked_fill(hidden_te, 0);
  // entries whose weights all round to 0 teach nothing
  return sum / ordered_sum(sum, {1}, true).clamp_min(std::numeric_limits<float>::min());
}

}  // namespace

Tensor top_entries(const EntryQueries& given, int64_t top_k) {
  const at::NoGradGuard no_gradients;
  const int64_t t = given.q_THD.size(0);
  Tensor out = at::zeros({t, top_k}, at::kInt);
  EntryQueries of{
      given.q_THD.contiguous(), given.w_TH.contiguous(), {}, given.scale, given.start, given.every};
  for (const Tensor& part : given.k_ED)
    if (part.size(0) > 0) of.k_ED.push_back(part.to(wide(of.q_THD)).contiguous());
  if (kernel_serves(Op::top_entries, of.q_THD)) {
    std::vector<kernels::IndexKeys> spans;
    for (const Tensor& part : of.k_ED)
      spans.push_back({part.const_data_ptr<float>(), part.size(0)});
    parallel_for(t, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      std::vector<int32_t> order;
      for (int64_t i = begin; i < end; ++i) by_kernel_of_query(of, spans, i, scores, order, out);
    });
    return out;
  }
  if (of.k_ED.empty()) return out;
  const Tensor k_ED = of.k_ED.size() == 1 ? of.k_ED[0] : at::cat(of.k_ED);
  std::vector<int32_t> order;
  for (int64_t first = 0; first < t; first += kEntryQueriesAtOnce) {
    const int64_t n = std::min(kEntryQueriesAtOnce, t - first);
    const Tensor scores =
        index_scores(of.q_THD.narrow(0, first, n), k_ED, of.w_TH.narrow(0, first, n), of.scale)
            .to(at::kCPU, at::kDouble)
            .contiguous();
    for (int64_t i = 0; i < n; ++i)
      best_entries(scores.const_data_ptr<double>() + i * scores.size(1),
                   (of.start + first + i + 1) / of.every, top_k, order,
                   out.data_ptr<int32_t>() + (first + i) * top_k);
  }
  return out;
}

Tensor entry_index_loss(const EntryQueries& of, const Tensor& entry_TK, const EntryTarget& target) {
  const int64_t t = of.q_THD.size(0), none = std::min(t, of.every - 1);
  std::vector<Tensor> losses{at::zeros({none}, of.q_THD.options().dtype(wide(of.q_THD)))};
  for (int64_t first = none; first < t; first += kEntryQueriesAtOnce) {
    const int64_t n = std::min(kEntryQueriesAtOnce, t - first), e = (first + n) / of.every;
    const Tensor hidden = entries_hidden(of, entry_TK, first, n, e);
    const Tensor p = weights_of_entries(target, of.every, hidden, first);
    const Tensor scores = index_scores(of.q_THD.narrow(0, first, n), of.k_ED[0].narrow(0, 0, e),
                                       of.w_TH.narrow(0, first, n), of.scale)
                              .masked_fill(hidden, kUnread);
    const Tensor log_q = (scores - at::logsumexp(scores, {1}, true)).masked_fill(hidden, 0);
    const Tensor of_type = p.to(log_q.scalar_type());
    losses.push_back(ordered_sum(at::xlogy(of_type, of_type) - of_type * log_q, {1}));
  }
  return at::cat(losses);
}

}  // namespace tessera::ops
