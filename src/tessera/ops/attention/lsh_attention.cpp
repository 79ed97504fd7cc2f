#include "tessera/ops/attention/lsh_attention.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/ops/attention/listed_attention.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/softmax.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::ops {
namespace {

// Logits in place of masked ones, as released: a token itself loses against any other key that it
// sees, and wins against those that it does not.
constexpr double kSelf = -1e5, kHidden = -1e9;
constexpr int64_t kQueryBlock = 128;  // queries whose lists are in memory at a time

/// Places of the sorted list hold token numbers, -1 after the end of a document: rounds one after
/// another, each padded to whole chunks.
struct Sorted {
  int64_t places = 0, padded = 0;            // R * padded
  std::vector<std::vector<int64_t>> token;   // [H][places]
  std::vector<std::vector<int64_t>> bucket;  // [H][places], of all rounds; 0 after the end
  std::vector<std::vector<int64_t>> place;   // [H][R * T], of token t in round r
};

Sorted sort_tokens(const Tensor& buckets_RHT, const Lsh& how) {
  const int64_t rounds = buckets_RHT.size(0), heads = buckets_RHT.size(1), t = buckets_RHT.size(2);
  Sorted out;
  out.padded = how.padded(t);
  out.places = rounds * out.padded;
  const Tensor buckets = buckets_RHT.contiguous();
  const int64_t per_round = t > 0 ? buckets.max().item<int64_t>() + 1 : 1;
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<int64_t> token(static_cast<size_t>(out.places), -1),
        place(static_cast<size_t>(rounds * t)), bucket_of(static_cast<size_t>(out.places));
    for (int64_t r = 0; r < rounds; ++r) {
      const auto* bucket = buckets.const_data_ptr<int64_t>() + (r * heads + h) * t;
      std::vector<int64_t> order(static_cast<size_t>(t));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return bucket[a] < bucket[b]; });
      for (int64_t i = 0; i < t; ++i) {
        token[static_cast<size_t>(r * out.padded + i)] = order[static_cast<size_t>(i)];
        bucket_of[static_cast<size_t>(r * out.padded + i)] =
            r * per_round + bucket[order[static_cast<size_t>(i)]];
        place[static_cast<size_t>(r * t + order[static_cast<size_t>(i)])] = r * out.padded + i;
      }
    }
    out.token.push_back(std::move(token));
    out.bucket.push_back(std::move(bucket_of));
    out.place.push_back(std::move(place));
  }
  return out;
}

/// The same order for by_chunks(), sorted on the device of the buckets without waiting for it.
struct SortedThere {
  Tensor token_HP, bucket_HP, place_HN;  // P places, N = R * T
};

SortedThere sort_there(const Tensor& buckets_RHT, const Lsh& how) {
  const int64_t rounds = buckets_RHT.size(0), heads = buckets_RHT.size(1), t = buckets_RHT.size(2),
                padded = how.padded(t);
  int64_t per_round = 1;
  for (const Tensor& rotation : how.rotations) per_round *= 2 * rotation.size(3);
  const auto [bucket, order] = at::sort(buckets_RHT, /*stable=*/true, -1, /*descending=*/false);
  const Tensor round = at::arange(rounds, order.options()).reshape({rounds, 1, 1}),
               place = (at::arange(t, order.options()) + round * padded).expand_as(order);
  const auto by_head = [&](const Tensor& x_RHN) {
    return x_RHN.transpose(0, 1).reshape({heads, rounds * x_RHN.size(2)});
  };
  return {by_head(at::constant_pad_nd(order, {0, padded - t}, -1)),
          by_head(at::constant_pad_nd(bucket + round * per_round, {0, padded - t}, 0)),
          by_head(at::empty_like(order).scatter_(-1, order, place))};
}

/// Chunks in reach of `chunk`, around the ends.
std::vector<int64_t> neighbours(const Lsh& how, int64_t chunk, int64_t chunks) {
  std::vector<int64_t> out;
  for (int64_t d = -how.before; d <= how.after; ++d)
    out.push_back(((chunk + d) % chunks + chunks) % chunks);
  return out;
}

/// Weighted by the rounds' sums of exponentials: out_RTHV, lse_RTH -> [T, H, V].
Tensor combined(const Tensor& out_RTHV, const Tensor& lse_RTH) {
  if (out_RTHV.size(0) == 1) return out_RTHV.squeeze(0);
  // in double: where a token sees itself alone, lse is near -1e5
  const Tensor lse = lse_RTH.to(at::kDouble);
  if (!kernel_serves(Op::lsh_attention, out_RTHV)) {
    const Tensor weights =
        ops::softmax(lse.permute({1, 2, 0})).permute({2, 0, 1}).to(out_RTHV.scalar_type());
    return ordered_sum(out_RTHV * spread(weights.unsqueeze(-1), out_RTHV), {0});
  }
  // element by element: no bits depend on the number of tokens
  const int64_t rounds = lse.size(0), n = lse[0].numel();
  Tensor weights = at::empty(lse.sizes(), at::kFloat);
  const auto* from = lse.const_data_ptr<double>();
  auto* to = weights.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i) {
    double top = from[i], total = 0;
    for (int64_t r = 1; r < rounds; ++r) top = std::max(top, from[r * n + i]);
    for (int64_t r = 0; r < rounds; ++r) total += std::exp(from[r * n + i] - top);
    for (int64_t r = 0; r < rounds; ++r)
      to[r * n + i] = static_cast<float>(std::exp(from[r * n + i] - top) / total);
  }
  Tensor sum;
  for (int64_t r = 0; r < rounds; ++r) {
    const Tensor term = out_RTHV[r] * weights[r].unsqueeze(-1);
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

/// The bias of every head by distance, [H, R] in the type of x_THD; undefined where there is none.
Tensor distance_bias(const Lsh& how, const Tensor& x_THD) {
  if (!how.bias_HR.defined()) return {};
  return how.bias_HR.to(x_THD.device(), x_THD.scalar_type())
      .expand({x_THD.size(1), how.bias_HR.size(1)})
      .contiguous();
}

/// The keys of every token and head in round r, ascending by token; `alone` collects those that see
/// themselves alone, with how often.
struct Alone {
  int64_t t, h, count;
};
KeyLists lists_of(const Sorted& sorted,
                  const Lsh& how,
                  int64_t round,
                  int64_t first,
                  int64_t n,
                  int64_t length,
                  const Tensor& bias_HR,
                  std::vector<Alone>& alone) {
  const auto heads = static_cast<int64_t>(sorted.token.size());
  const int64_t chunks = sorted.places / how.chunk;
  KeyLists lists;
  lists.per_query = heads;
  std::vector<int64_t> seen;
  for (int64_t t = first; t < first + n; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const auto& token = sorted.token[static_cast<size_t>(h)];
      const auto& bucket = sorted.bucket[static_cast<size_t>(h)];
      const int64_t place =
          sorted.place[static_cast<size_t>(h)][static_cast<size_t>(round * length + t)];
      seen.clear();
      int64_t itself = 0;
      for (const int64_t chunk : neighbours(how, place / how.chunk, chunks))
        for (int64_t p = chunk * how.chunk; p < (chunk + 1) * how.chunk; ++p) {
          const int64_t key = token[static_cast<size_t>(p)];
          if (key == t) ++itself;
          const bool hidden = (how.causal && key > t) ||
                              (how.same_bucket_only && bucket[static_cast<size_t>(p)] !=
                                                           bucket[static_cast<size_t>(place)]);
          if (key >= 0 && key != t && !hidden) seen.push_back(key);
        }
      if (seen.empty()) {
        alone.push_back({t, h, how.dedupe ? 1 : itself});
        seen.push_back(t);
      }
      std::sort(seen.begin(), seen.end());
      if (how.dedupe) seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
      const auto bias = [&](int64_t key) {
        if (!bias_HR.defined()) return 0.0f;
        const int64_t r = bias_HR.size(1);
        return bias_HR
            .const_data_ptr<float>()[h * r + std::clamp<int64_t>(how.zero + key - t, 0, r - 1)];
      };
      for (const int64_t key : seen) lists.add(0, key, bias(key));
      lists.end_list();
    }
  return lists;
}

Tensor by_kernel(const Tensor& q,
                 const Tensor& k,
                 const Tensor& v,
                 const Lsh& how,
                 const Sorted& sorted,
                 Tensor* lse_THR) {
  const int64_t t = q.size(0), rounds = how.rounds();
  const Tensor bias_HR = distance_bias(how, q);
  std::vector<Tensor> outs, lses;
  for (int64_t r = 0; r < rounds; ++r) {
    std::vector<Tensor> out, lse;
    for (int64_t first = 0; first < t; first += kQueryBlock) {
      const int64_t n = std::min(kQueryBlock, t - first);
      std::vector<Alone> alone;
      const KeyLists lists = lists_of(sorted, how, r, first, n, t, bias_HR, alone);
      Attended a = listed_attention(q.narrow(0, first, n), {{k, v}}, lists, 1);
      Tensor exact = a.lse.to(at::kDouble);
      auto* cell = exact.data_ptr<double>();
      for (const Alone& one : alone)
        cell[(one.t - first) * q.size(1) + one.h] =
            kSelf + std::log(static_cast<double>(one.count));
      out.push_back(a.out);
      lse.push_back(exact);
    }
    outs.push_back(at::cat(out));
    lses.push_back(at::cat(lse));
  }
  const Tensor lse = at::stack(lses);
  if (lse_THR != nullptr) *lse_THR = lse.permute({1, 2, 0});
  return combined(at::stack(outs), lse);
}

Tensor by_chunks(const Tensor& q,
                 const Tensor& k,
                 const Tensor& v,
                 const Lsh& how,
                 const SortedThere& sorted,
                 Tensor* lse_THR) {
  const Tensor &token = sorted.token_HP, &bucket = sorted.bucket_HP, &place = sorted.place_HN;
  const int64_t t = q.size(0), heads = q.size(1), c = how.chunk, rounds = how.rounds(),
                places = token.size(1), chunks = places / c;
  const auto listed = [&](const Tensor& x) {  // [H, chunks, c, D]
    const Tensor index = token.clamp_min(0).unsqueeze(-1).expand({heads, places, x.size(2)});
    return x.transpose(0, 1).gather(1, index).reshape({heads, chunks, c, x.size(2)});
  };
  const auto in_reach = [&](const Tensor& x) {  // chunk i - before .. i + after next to chunk i
    std::vector<Tensor> parts;
    for (int64_t d = -how.before; d <= how.after; ++d) parts.push_back(at::roll(x, -d, 1));
    return at::cat(parts, 2);
  };
  const Tensor query = token.reshape({heads, chunks, c}), key = in_reach(query);
  Tensor scores = ops::product(listed(q), in_reach(listed(k)).transpose(-1, -2));
  if (const Tensor bias_HR = distance_bias(how, q); bias_HR.defined()) {
    const Tensor index =
        (key.unsqueeze(2) - query.unsqueeze(3) + how.zero).clamp(0, bias_HR.size(1) - 1);
    scores = scores + bias_HR.gather(1, index.flatten(1)).reshape(scores.sizes());
  }
  Tensor hidden = key.lt(0).unsqueeze(2).expand_as(scores);
  if (how.causal) hidden = hidden.logical_or(key.unsqueeze(2).gt(query.unsqueeze(3)));
  if (how.same_bucket_only) {
    const Tensor own = bucket.reshape({heads, chunks, c});
    hidden = hidden.logical_or(in_reach(own).unsqueeze(2).ne(own.unsqueeze(3)));
  }
  const Tensor itself = key.unsqueeze(2).eq(query.unsqueeze(3));
  scores = scores.masked_fill(hidden, kHidden).masked_fill(itself, kSelf);
  // Where a token sees itself alone, the sum is formed around kSelf: with it, float32 would lose
  // the logarithm of how often.
  const Tensor alone = scores.detach().amax(-1).le(kSelf).to(scores.scalar_type()) * kSelf;
  Tensor near = scores - alone.unsqueeze(-1);
  if (how.dedupe) {
    // how often each key is shown to a query
    const Tensor shown = hidden.logical_not().logical_or(itself).to(near.scalar_type()),
                 same = key.unsqueeze(2).eq(key.unsqueeze(3)).to(near.scalar_type());
    near = near - ops::product(shown, same).clamp_min(1).log();
  }
  const Tensor rest = at::logsumexp(near, -1);
  const Tensor weights = (near - rest.unsqueeze(-1)).exp();
  const Tensor lse = rest.to(at::kDouble) + alone;
  const Tensor out = ops::product(weights, in_reach(listed(v)));
  // back to the order of the tokens
  const int64_t width = v.size(2);
  const Tensor out_RTHV = out.reshape({heads, places, width})
                              .gather(1, place.unsqueeze(-1).expand({heads, rounds * t, width}))
                              .reshape({heads, rounds, t, width})
                              .permute({1, 2, 0, 3});
  const Tensor lse_RTH =
      lse.reshape({heads, places}).gather(1, place).reshape({heads, rounds, t}).permute({1, 2, 0});
  if (lse_THR != nullptr) *lse_THR = lse_RTH.permute({1, 2, 0});
  return combined(out_RTHV, lse_RTH);
}

}  // namespace

std::vector<int64_t> lsh_bucket_factors(int64_t length, int64_t chunk, int64_t max_length) {
  const auto log2_of = [](int64_t n) {
    int64_t e = 0;
    while ((int64_t{2} << e) <= n) ++e;
    return e;
  };
  const int64_t e = std::max<int64_t>(1, log2_of(2 * std::max<int64_t>(1, length / chunk)));
  const auto root =
      static_cast<int64_t>(std::sqrt(static_cast<double>(max_length) / static_cast<double>(chunk)));
  const int64_t limit = 2 * std::max(root, chunk);
  if ((int64_t{1} << e) <= limit) return {int64_t{1} << e};
  return {int64_t{1} << (e / 2), int64_t{1} << (e - e / 2)};
}

std::vector<Tensor> lsh_rotations(const RandomKey& key,
                                  const std::vector<int64_t>& factors,
                                  int64_t rounds,
                                  int64_t heads,
                                  int64_t d) {
  std::vector<Tensor> out;
  for (size_t f = 0; f < factors.size(); ++f) {
    const RandomKey stream = key.fold(static_cast<uint64_t>(f));
    Tensor rotation = at::empty({rounds, heads, d, factors[f] / 2}, at::kDouble);
    auto* values = rotation.data_ptr<double>();
    for (int64_t i = 0; i < rotation.numel(); ++i)
      values[i] = stream.normal(static_cast<uint64_t>(i));
    out.push_back(rotation);
  }
  return out;
}

std::vector<Tensor> lsh_torch_rotations(
    uint64_t seed, const std::vector<int64_t>& factors, int64_t rounds, int64_t heads, int64_t d) {
  const int64_t columns = std::accumulate(factors.begin(), factors.end(), int64_t{0}) / 2;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const Tensor all = at::randn({heads, d, rounds, columns}, generator, at::kFloat);
  std::vector<Tensor> out;
  int64_t first = 0;
  for (const int64_t factor : factors) {
    out.push_back(all.narrow(3, first, factor / 2).permute({2, 0, 1, 3}).contiguous());
    first += factor / 2;
  }
  return out;
}

Tensor lsh_buckets(const Tensor& qk_THD, const Lsh& how) {
  const at::NoGradGuard no_gradients;
  const Tensor x = qk_THD.detach().to(wide(qk_THD));
  const int64_t rounds = how.rounds(), heads = x.size(1);
  Tensor bucket;
  int64_t digit = 1;
  for (const Tensor& rotation : how.rotations) {
    Tensor turned;  // [R, H, T, n / 2]
    if (!kernel_serves(Op::lsh_buckets, x)) {
      turned = ops::einsum("thd,rhdn->rhtn", x, rotation.to(x.device(), x.scalar_type()));
    } else {
      std::vector<Tensor> parts;
      for (int64_t r = 0; r < rounds; ++r)
        for (int64_t h = 0; h < heads; ++h) {
          const Tensor w = rotation[r][h].t().to(x.scalar_type()).contiguous();
          parts.push_back(linear(x.select(1, h), Weight::dense("rotation", w)));
        }
      turned = at::stack(parts).unflatten(0, {rounds, heads});
    }
    const Tensor own = at::cat({turned, -turned}, -1).argmax(-1) * digit;
    bucket = bucket.defined() ? bucket + own : own;
    digit *= 2 * rotation.size(3);
  }
  return bucket;
}

Tensor lsh_attention(const Tensor& qk_THD, const Tensor& v_THV, const Lsh& how, Tensor* lse_THR) {
  const int64_t t = qk_THD.size(0);
  const Tensor q = qk_THD.to(wide(qk_THD)), v = v_THV.to(wide(v_THV));
  const Tensor k = rms_norm(q, {}, 0, 1e-6) / std::sqrt(static_cast<double>(q.size(2)));
  Lsh own = how;
  Tensor buckets;
  if (t <= how.chunk) {
    // the whole document as one chunk of one round
    own.chunk = own.pad_to = t;
    own.before = own.after = 0;
    own.rotations = {how.rotations.at(0).narrow(0, 0, 1)};
    buckets = at::zeros({1, q.size(1), t}, at::kLong);
  } else {
    buckets = how.buckets_RHT.defined() ? how.buckets_RHT : lsh_buckets(q, how);
  }
  const bool by_lists = kernel_serves(Op::lsh_attention, q);
  buckets = buckets.to(by_lists ? at::Device(at::kCPU) : q.device(), at::kLong);
  const Tensor out = by_lists ? by_kernel(q, k, v, own, sort_tokens(buckets, own), lse_THR)
                              : by_chunks(q, k, v, own, sort_there(buckets, own), lse_THR);
  return out.to(qk_THD.scalar_type());
}

}  // namespace tessera::ops
