#include "tessera/ops/attention/indexer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "tessera/base/threads.h"
#include "tessera/kernels/attention/indexer.h"
#include "tessera/ops/attention/query_blocks.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

constexpr int64_t kScoresAtOnce = int64_t{1} << 22;  // numbers in memory
constexpr int64_t kMostQueries = 64;
constexpr double kLowest = -std::numeric_limits<double>::infinity();

int64_t queries_at_once(int64_t numbers_of_query) {
  return std::clamp<int64_t>(kScoresAtOnce / std::max<int64_t>(1, numbers_of_query), 1,
                             kMostQueries);
}

/// Work memory of greatest().
template <class T>
struct Candidates {
  std::vector<T> sample, scores;
  std::vector<int32_t> keys;
};

/// A bound that about 1.25 k of n scores reach, by every `kEach`-th of them; -inf: none.
template <class T>
T likely_bound(const T* scores, int64_t n, int64_t k, std::vector<T>& sample) {
  constexpr int64_t kEach = 16, kSpread = 16;
  const int64_t rank = (k + k / 4) / kEach + kSpread;
  if (rank >= n / kEach) return -std::numeric_limits<T>::infinity();
  sample.clear();
  for (int64_t s = 0; s < n; s += kEach)
    sample.push_back(std::isnan(scores[s]) ? -std::numeric_limits<T>::infinity() : scores[s]);
  std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<>());
  return sample[static_cast<size_t>(rank)];
}

/// The k greatest of n scores, ascending; of equal ones the earlier.
template <class T>
void greatest(const T* scores, int64_t n, int64_t k, Candidates<T>& work, int32_t* out) {
  constexpr T kLeast = -std::numeric_limits<T>::infinity();
  if (n <= k) return std::iota(out, out + n, 0);
  // The scores that reach a bound: if they are enough, the others, no numbers among them, are
  // smaller than k of them.
  work.keys.resize(static_cast<size_t>(n));
  int64_t count = 0;
  if (const T bound = likely_bound(scores, n, k, work.sample); bound > kLeast)
    for (int64_t s = 0; s < n; ++s) {
      work.keys[static_cast<size_t>(count)] = static_cast<int32_t>(s);
      count += scores[s] >= bound ? 1 : 0;
    }
  if (count < k) {
    count = n;
    std::iota(work.keys.begin(), work.keys.end(), 0);
  }
  const auto score = [&](int64_t i) {
    const T value = scores[work.keys[static_cast<size_t>(i)]];
    return std::isnan(value) ? kLeast : value;
  };
  work.scores.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) work.scores[static_cast<size_t>(i)] = score(i);
  std::nth_element(work.scores.begin(), work.scores.begin() + (k - 1), work.scores.end(),
                   std::greater<>());
  const T least = work.scores[static_cast<size_t>(k - 1)];
  int64_t equal = k - std::count_if(work.scores.begin(), work.scores.begin() + (k - 1),
                                    [&](T value) { return value > least; });
  for (int64_t i = 0; i < count; ++i)
    if (const T value = score(i); value > least || (value == least && equal-- > 0))
      *out++ = work.keys[static_cast<size_t>(i)];
}

/// The keys of queries [first, first + n) from their scores, rows of `stride` on the CPU.
template <class T>
void choose(
    const T* scores, int64_t stride, int64_t start, int64_t first, int64_t n, const Tensor& out) {
  const int64_t k = out.size(1);
  auto* keys = out.data_ptr<int32_t>();
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    Candidates<T> work;
    for (int64_t i = begin; i < end; ++i)
      greatest(scores + i * stride, start + first + i + 1, k, work, keys + (first + i) * k);
  });
}

/// The same for blocks of `size` keys: their best keys, the `local` last ones first of all.
template <class T>
void choose_blocks(const T* scores,
                   int64_t stride,
                   int64_t start,
                   int64_t first,
                   int64_t n,
                   int64_t size,
                   int64_t local,
                   int64_t group,
                   const Tensor& out) {
  const int64_t groups = out.size(1), k = out.size(2);
  auto* blocks = out.data_ptr<int32_t>();
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> best;
    Candidates<T> work;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t keys = start + first + i + 1, count = (keys + size - 1) / size;
      best.assign(static_cast<size_t>(count), -std::numeric_limits<T>::infinity());
      for (int64_t s = 0; s < keys; ++s) {
        T& of_block = best[static_cast<size_t>(s / size)];
        // no number is not greater
        if (const T score = scores[i * stride + s]; score > of_block) of_block = score;
      }
      std::fill(best.end() - std::min(local, count), best.end(),
                std::numeric_limits<T>::infinity());
      greatest(best.data(), count, k, work, blocks + ((first + i) * groups + group) * k);
    }
  });
}

/// Which of keys [0, s) queries [first, first + t) do not have, [t, s]; key_TK: numbers of blocks
/// of `size` keys.
Tensor keys_hidden(const Tensor& key_TK,
                   int64_t first,
                   int64_t t,
                   int64_t s,
                   at::Device device,
                   int64_t size = 1) {
  Tensor hidden = at::ones({t, s}, at::kBool);
  auto* out = hidden.data_ptr<bool>();
  for (int64_t i = 0; i < t; ++i, out += s) {
    const int64_t all = first + i + 1;
    if (!key_TK.defined() || key_TK.size(1) * size >= all) {
      std::fill(out, out + all, false);
      continue;
    }
    const int32_t* keys = key_TK.const_data_ptr<int32_t>() + (first + i) * key_TK.size(1);
    for (int64_t j = 0; j < key_TK.size(1); ++j)
      std::fill(out + keys[j] * size, out + std::min((keys[j] + 1) * size, all), false);
  }
  return hidden.to(device);
}

/// Which of the blocks [0, b) queries [first, first + t) do not have, [t, b]; block_TK: as of
/// top_pooled.
Tensor blocks_hidden(
    const Tensor& block_TK, int64_t first, int64_t t, int64_t b, int64_t size, at::Device device) {
  Tensor hidden = at::ones({t, b}, at::kBool);
  auto* out = hidden.data_ptr<bool>();
  for (int64_t i = 0; i < t; ++i, out += b) {
    const int64_t complete = (first + i + 1) / size;
    if (!block_TK.defined() || block_TK.size(1) > complete) {
      std::fill(out, out + complete, false);
      continue;
    }
    const int32_t* blocks = block_TK.const_data_ptr<int32_t>() + (first + i) * block_TK.size(1);
    for (int64_t j = 0; j + 1 < block_TK.size(1); ++j) out[blocks[j]] = false;
  }
  return hidden.to(device);
}

/// p of queries [first, first + t) over keys [0, s), [t, s]; no gradient.
Tensor weights_of_heads(const IndexTarget& target, int64_t first, const Tensor& hidden_ts) {
  const at::NoGradGuard constant;
  const int64_t t = hidden_ts.size(0), s = hidden_ts.size(1), h = target.q_THK.size(1);
  const auto type = wide(target.q_THK);
  const Tensor q_HtK = target.q_THK.narrow(0, first, t).to(type).transpose(0, 1),
               k_HKs = target.k_SGK.narrow(0, 0, s).to(type).permute({1, 2, 0}).repeat_interleave(
                   h / target.k_SGK.size(1), 0);
  Tensor scores = product(q_HtK, k_HKs) * target.how.scale;
  if (const double cap = target.how.softcap; cap > 0) scores = cap * at::tanh(scores / cap);
  // full attention first, then what it gives the chosen keys
  scores = scores.masked_fill(keys_hidden({}, first, t, s, scores.device()), kLowest);
  if (target.how.sinks_H.defined())
    scores = at::cat(
        {scores,
         target.how.sinks_H.detach().to(scores.options()).reshape({h, 1, 1}).expand({h, t, 1})},
        -1);
  const Tensor sum = ordered_sum(softmax(scores).narrow(-1, 0, s), {0}).masked_fill(hidden_ts, 0);
  // chosen keys whose weights all round to 0 teach nothing
  return sum / ordered_sum(sum, {1}, true).clamp_min(std::numeric_limits<float>::min());
}

/// KL(p || softmax I) by rows, [t].
Tensor divergence(const Tensor& p_ts, const Tensor& scores_ts, const Tensor& hidden_ts) {
  const Tensor seen = scores_ts.masked_fill(hidden_ts, kLowest);
  const Tensor log_q = (seen - at::logsumexp(seen, {1}, true)).masked_fill(hidden_ts, 0);
  const Tensor p = p_ts.to(log_q.scalar_type());
  return ordered_sum(at::xlogy(p, p) - p * log_q, {1});
}

}  // namespace

Tensor index_scores(const Tensor& q_THD, const Tensor& k_SD, const Tensor& w_TH, double scale) {
  const auto type = wide(q_THD);
  const Tensor products_THS =
      product(q_THD.to(type).flatten(0, 1), k_SD.to(type).t()).unflatten(0, {-1, q_THD.size(1)});
  return product(w_TH.to(type).unsqueeze(1), at::relu(products_THS * scale)).squeeze(1);
}

void top_of_scores(const float* scores, int64_t n, int64_t top_k, int32_t* out) {
  thread_local Candidates<float> work;
  greatest(scores, n, top_k, work, out);
}

Tensor top_keys(const IndexedQueries& of, int64_t top_k) {
  const at::NoGradGuard no_gradients;
  const int64_t t = of.q_THD.size(0), heads = of.q_THD.size(1), keys = of.start + t;
  Tensor out = at::zeros({t, top_k}, at::kInt);
  const bool fast = kernel_serves(Op::top_keys, of.q_THD);
  std::vector<Tensor> parts;
  for (const Tensor& part : of.k_SD) parts.push_back(part.to(wide(of.q_THD)).contiguous());
  if (!fast) parts = {at::cat(parts)};
  std::vector<kernels::IndexKeys> spans;
  if (fast)
    for (const Tensor& part : parts) spans.push_back({part.const_data_ptr<float>(), part.size(0)});
  const Tensor q = of.q_THD.contiguous(), w = of.w_TH.contiguous();
  const int64_t at_once = queries_at_once(fast ? keys : keys * heads);
  for (int64_t first = 0; first < t; first += at_once) {
    const int64_t n = std::min(at_once, t - first), seen = of.start + first + n;
    if (fast) {
      Tensor scores = at::empty({n, seen}, q.options());
      kernels::index_scores(
          {n, heads, q.size(2), q.const_data_ptr<float>() + first * q.stride(0),
           w.const_data_ptr<float>() + first * heads, static_cast<float>(of.scale), spans.data(),
           static_cast<int64_t>(spans.size()), of.start + first, scores.data_ptr<float>(), seen});
      choose(scores.const_data_ptr<float>(), seen, of.start, first, n, out);
    } else {
      const Tensor scores = index_scores(q.narrow(0, first, n), parts[0].narrow(0, 0, seen),
                                         w.narrow(0, first, n), of.scale)
                                .to(at::kCPU, at::kDouble)
                                .contiguous();
      choose(scores.const_data_ptr<double>(), seen, of.start, first, n, out);
    }
  }
  return out;
}

Tensor top_blocks(const BlockQueries& of, int64_t top_k, int64_t size, int64_t local) {
  const at::NoGradGuard no_gradients;
  const int64_t t = of.q_TGD.size(0), groups = of.q_TGD.size(1), keys = of.start + t;
  Tensor out = at::zeros({t, groups, top_k}, at::kInt);
  const bool fast = kernel_serves(Op::top_keys, of.q_TGD);
  std::vector<Tensor> parts;
  for (const Tensor& part : of.k_SD) parts.push_back(part.to(wide(of.q_TGD)).contiguous());
  if (!fast) parts = {at::cat(parts)};
  std::vector<kernels::IndexKeys> spans;
  if (fast)
    for (const Tensor& part : parts) spans.push_back({part.const_data_ptr<float>(), part.size(0)});
  const int64_t at_once = queries_at_once(keys);
  for (int64_t g = 0; g < groups; ++g) {
    const Tensor q = of.q_TGD.select(1, g).contiguous();
    for (int64_t first = 0; first < t; first += at_once) {
      const int64_t n = std::min(at_once, t - first), seen = of.start + first + n;
      if (fast) {
        Tensor scores = at::empty({n, seen}, q.options());
        kernels::index_scores({n, 1, q.size(1), q.const_data_ptr<float>() + first * q.size(1),
                               nullptr, 1.0f, spans.data(), static_cast<int64_t>(spans.size()),
                               of.start + first, scores.data_ptr<float>(), seen});
        choose_blocks(scores.const_data_ptr<float>(), seen, of.start, first, n, size, local, g,
                      out);
      } else {
        const Tensor scores =
            product(q.narrow(0, first, n).to(wide(q)), parts[0].narrow(0, 0, seen).t())
                .to(at::kCPU, at::kDouble)
                .contiguous();
        choose_blocks(scores.const_data_ptr<double>(), seen, of.start, first, n, size, local, g,
                      out);
      }
    }
  }
  return out;
}

Tensor top_pooled(const IndexedQueries& of, int64_t top_k, int64_t size) {
  const at::NoGradGuard no_gradients;
  const int64_t t = of.q_THD.size(0), heads = of.q_THD.size(1), width = top_k + 1;
  Tensor out = at::zeros({t, width}, at::kInt);
  auto* blocks = out.data_ptr<int32_t>();
  const auto complete = [&](int64_t i) { return (of.start + i + 1) / size; };
  if (t == 0 || complete(t - 1) == 0) return out;
  // the greatest of query i by its scores, then the block that is not complete
  const auto list = [&](int64_t i, const auto* scores, auto& work) {
    int32_t* own = blocks + i * width;
    greatest(scores, complete(i), top_k, work, own);
    own[std::min(top_k, complete(i))] = static_cast<int32_t>(complete(i));
  };
  std::vector<Tensor> parts;
  for (const Tensor& part : of.k_SD) parts.push_back(part.to(wide(of.q_THD)).contiguous());
  const Tensor q = of.q_THD.contiguous(), w = of.w_TH.contiguous();
  if (kernel_serves(Op::top_keys, of.q_THD)) {
    std::vector<kernels::IndexKeys> spans;
    for (const Tensor& part : parts) spans.push_back({part.const_data_ptr<float>(), part.size(0)});
    parallel_for(t, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      Candidates<float> work;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = complete(i);
        scores.resize(static_cast<size_t>(n));
        if (n > top_k)  // else all of them
          kernels::index_scores({1, heads, q.size(2), q.const_data_ptr<float>() + i * q.stride(0),
                                 w.const_data_ptr<float>() + i * heads,
                                 static_cast<float>(of.scale), spans.data(),
                                 static_cast<int64_t>(spans.size()), n - 1, scores.data(), n});
        list(i, scores.data(), work);
      }
    });
    return out;
  }
  const Tensor k = at::cat(parts);
  const int64_t at_once = queries_at_once(std::max<int64_t>(1, k.size(0)) * heads);
  for (int64_t first = 0; first < t; first += at_once) {
    const int64_t n = std::min(at_once, t - first);
    const Tensor scores = index_scores(q.narrow(0, first, n), k, w.narrow(0, first, n), of.scale)
                              .to(at::kCPU, at::kDouble)
                              .contiguous();
    auto* rows = scores.data_ptr<double>();
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      Candidates<double> work;
      for (int64_t i = begin; i < end; ++i) list(first + i, rows + i * k.size(0), work);
    });
  }
  return out;
}

Tensor index_loss(const Tensor& q_THD,
                  const Tensor& k_SD,
                  const Tensor& w_TH,
                  double scale,
                  const Tensor& key_TK,
                  const IndexTarget& target) {
  const int64_t t = q_THD.size(0),
                at_once = queries_at_once(t * std::max(q_THD.size(1), target.q_THK.size(1)));
  ByQueryBlocks blocks;
  for (int64_t first = 0; first < t; first += at_once) {
    const int64_t n = std::min(at_once, t - first);
    blocks.blocks.push_back({first, n, {{0, first + n}}, {0}});
  }
  blocks.reads = {BlockReads::queries, BlockReads::keys, BlockReads::queries};
  const IndexTarget constant{target.q_THK.detach(), target.k_SGK.detach(), target.how};
  blocks.run = [scale, key_TK, constant](const QueryBlock& b, const std::vector<Tensor>& cuts) {
    const Tensor q = cuts[0].squeeze(0).transpose(0, 1), k = cuts[1].squeeze(0).squeeze(0),
                 w = cuts[2].squeeze(0).squeeze(-1).t();
    const Tensor hidden = keys_hidden(key_TK, b.query, b.queries, k.size(0), q.device());
    return divergence(weights_of_heads(constant, b.query, hidden), index_scores(q, k, w, scale),
                      hidden)
        .reshape({1, 1, -1, 1});
  };
  return by_query_blocks(std::move(blocks),
                         {q_THD.transpose(0, 1).unsqueeze(0), k_SD.unsqueeze(0).unsqueeze(0),
                          w_TH.t().unsqueeze(0).unsqueeze(-1)})
      .flatten();
}

Tensor block_index_loss(const Tensor& q_TGD,
                        const Tensor& k_SD,
                        double scale,
                        const Tensor& block_TGK,
                        int64_t size,
                        const IndexTarget& target) {
  const int64_t t = q_TGD.size(0), groups = q_TGD.size(1), heads = target.q_THK.size(1),
                share = heads / groups, of_key = heads / target.k_SGK.size(1),
                at_once = queries_at_once(t * std::max(groups, heads));
  ByQueryBlocks blocks;
  for (int64_t first = 0; first < t; first += at_once) {
    const int64_t n = std::min(at_once, t - first);
    blocks.blocks.push_back({first, n, {{0, first + n}}, {0}});
  }
  blocks.reads = {BlockReads::queries, BlockReads::keys};
  // of each head its share of the target's heads, with the keys of each
  std::vector<IndexTarget> of_heads;
  std::vector<Tensor> of_blocks;
  for (int64_t g = 0; g < groups; ++g) {
    IndexTarget own{target.q_THK.detach().narrow(1, g * share, share),
                    target.k_SGK.detach().index_select(
                        1, (at::arange(g * share, (g + 1) * share, at::kLong) / of_key)
                               .floor()
                               .to(target.k_SGK.device(), at::kLong)),
                    target.how};
    if (own.how.sinks_H.defined()) own.how.sinks_H = own.how.sinks_H.narrow(0, g * share, share);
    of_heads.push_back(std::move(own));
    of_blocks.push_back(block_TGK.defined() ? block_TGK.select(1, g).contiguous() : block_TGK);
  }
  blocks.run = [scale, size, of_heads, of_blocks](const QueryBlock& b,
                                                  const std::vector<Tensor>& cuts) {
    const auto type = wide(cuts[0]);
    const Tensor k = cuts[1].squeeze(0).squeeze(0).to(type);
    Tensor sum;
    for (size_t g = 0; g < of_heads.size(); ++g) {
      const Tensor q = cuts[0].squeeze(0)[static_cast<int64_t>(g)].to(type);
      const Tensor hidden =
          keys_hidden(of_blocks[g], b.query, b.queries, k.size(0), q.device(), size);
      const Tensor one = divergence(weights_of_heads(of_heads[g], b.query, hidden),
                                    product(q, k.t()) * scale, hidden);
      sum = sum.defined() ? sum + one : one;
    }
    return sum.reshape({1, 1, -1, 1});
  };
  return by_query_blocks(std::move(blocks),
                         {q_TGD.transpose(0, 1).unsqueeze(0), k_SD.unsqueeze(0).unsqueeze(0)})
      .flatten();
}

Tensor pooled_index_loss(const Tensor& q_THD,
                         const Tensor& k_BD,
                         double scale,
                         const Tensor& block_TK,
                         int64_t size,
                         const IndexTarget& target) {
  const int64_t t = q_THD.size(0);
  if (k_BD.size(0) == 0) return at::zeros({t}, q_THD.options().dtype(wide(q_THD)));
  const int64_t at_once = queries_at_once(t * std::max(q_THD.size(1), target.q_THK.size(1)));
  ByQueryBlocks blocks;
  for (int64_t first = 0; first < t; first += at_once) {
    const int64_t n = std::min(at_once, t - first);
    // at least one, which queries before its end do not have
    blocks.blocks.push_back({first, n, {{0, std::max<int64_t>(1, (first + n) / size)}}, {0}});
  }
  blocks.reads = {BlockReads::queries, BlockReads::keys};
  const IndexTarget constant{target.q_THK.detach(), target.k_SGK.detach(), target.how};
  blocks.run = [scale, size, block_TK, constant](const QueryBlock& b,
                                                 const std::vector<Tensor>& cuts) {
    const Tensor q = cuts[0].squeeze(0).transpose(0, 1), k = cuts[1].squeeze(0).squeeze(0);
    const int64_t n = b.queries, count = k.size(0), keys = b.query + n;
    const Tensor hidden_nb = blocks_hidden(block_TK, b.query, n, count, size, q.device());
    Tensor hidden_ns = hidden_nb.repeat_interleave(size, 1);
    hidden_ns = at::constant_pad_nd(hidden_ns, {0, std::max<int64_t>(0, keys - count * size)}, 1)
                    .narrow(1, 0, keys);
    const Tensor p_ns = weights_of_heads(constant, b.query, hidden_ns);
    // keys of blocks alone
    const Tensor p_nb =
        ordered_sum(at::constant_pad_nd(p_ns, {0, std::max<int64_t>(0, count * size - keys)})
                        .narrow(1, 0, count * size)
                        .reshape({n, count, size}),
                    {2});
    return divergence(p_nb, index_scores(q, k, at::ones({n, q.size(1)}, q.options()), scale),
                      hidden_nb)
        .reshape({1, 1, -1, 1});
  };
  return by_query_blocks(std::move(blocks),
                         {q_THD.transpose(0, 1).unsqueeze(0), k_BD.unsqueeze(0).unsqueeze(0)})
      .flatten();
}

}  // namespace tessera::ops
