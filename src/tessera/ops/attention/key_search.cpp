#include "tessera/ops/attention/key_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/base/ranking.h"
#include "tessera/base/threads.h"
#include "tessera/ops/attention/attention.h"

namespace tessera::ops {
namespace {

constexpr int64_t kKeysAtOnce = 1024;  // whose products are in memory in addition to the scores
constexpr int64_t kRowsPerThread = 8;

/// In eight sums over every eighth channel, so that its bits depend on the two vectors alone.
template <class T>
double product(const T* a, const T* b, int64_t d) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= d; i += kSums)
    for (int64_t j = 0; j < kSums; ++j)
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  for (; i < d; ++i) sums[i % kSums] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return std::accumulate(sums, sums + kSums, 0.0);
}

/// Rows [N, H, D] on the CPU, without gaps, in float32 or double.
Tensor plain_rows(const Tensor& x) {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor y = x.detach().to(at::kCPU, type);
  return y.stride(2) == 1 && y.stride(1) == y.size(2) ? y : y.contiguous();
}

}  // namespace

Tensor key_buckets(const Tensor& x_NHD, const Tensor& rotations_RHDn) {
  const Tensor x = x_NHD.detach().to(at::kCPU, at::kDouble).contiguous();
  const int64_t n = x.size(0), h = x.size(1), d = x.size(2), rounds = rotations_RHDn.size(0),
                half = rotations_RHDn.size(3);
  Tensor out = at::empty({n, h, rounds}, at::kFloat);
  const auto *from = x.const_data_ptr<double>(), *turn = rotations_RHDn.const_data_ptr<double>();
  auto* to = out.data_ptr<float>();
  parallel_for(n * h, kRowsPerThread, [&](int64_t begin, int64_t end) {
    std::vector<double> along(static_cast<size_t>(half));
    for (int64_t row = begin; row < end; ++row)
      for (int64_t r = 0; r < rounds; ++r) {
        std::fill(along.begin(), along.end(), 0.0);
        const double* w = turn + (r * h + row % h) * d * half;
        for (int64_t c = 0; c < d; ++c)
          for (int64_t j = 0; j < half; ++j)
            along[static_cast<size_t>(j)] += from[row * d + c] * w[c * half + j];
        const auto nearest = std::max_element(along.begin(), along.end(), [](double a, double b) {
          return std::abs(a) < std::abs(b);
        });
        to[row * rounds + r] =
            static_cast<float>((nearest - along.begin()) + (*nearest < 0 ? half : 0));
      }
  });
  return out.to(x_NHD.device());
}

KeySearch::KeySearch(std::vector<Tensor> k_SHD, const std::vector<Tensor>& buckets_SHR) {
  for (const Tensor& part : k_SHD) keys_.push_back(plain_rows(part));
  buckets_HRN_ = at::cat(buckets_SHR).detach().permute({1, 2, 0}).to(at::kCPU, at::kByte);
  buckets_HRN_ = buckets_HRN_.contiguous();
}

void KeySearch::score(const Tensor& q_THD) {
  const int64_t n = std::accumulate(keys_.begin(), keys_.end(), int64_t{0},
                                    [](int64_t sum, const Tensor& k) { return sum + k.size(0); });
  const std::vector<int64_t> shape{q_THD.size(1), q_THD.size(0), n};
  // numbers of fewer bits are exact in float32
  const auto type = q_THD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!scores_HTN_.defined() || scores_HTN_.sizes() != shape || scores_HTN_.scalar_type() != type)
    scores_HTN_ = at::empty(shape, at::TensorOptions().dtype(type));
  const auto heads_first = [](const Tensor& x) { return x.detach().transpose(0, 1); };
  const Tensor q_HTD = heads_first(q_THD);
  int64_t column = 0;
  for (const Tensor& part : keys_)
    for (int64_t first = 0; first < part.size(0); first += kKeysAtOnce) {
      const int64_t s = std::min(kKeysAtOnce, part.size(0) - first);
      scores_HTN_.narrow(2, column, s)
          .copy_(row_products(q_HTD, heads_first(part.narrow(0, first, s))));
      column += s;
    }
}

template <class T>
FoundKeys KeySearch::greatest(int64_t k) const {
  const int64_t h = scores_HTN_.size(0), t = scores_HTN_.size(1), n = scores_HTN_.size(2);
  const T* all = scores_HTN_.const_data_ptr<T>();
  k = std::min(k, n);
  FoundKeys out;
  out.scored = t * h * n;
  out.keys.resize(static_cast<size_t>(t * h * k));
  for (int64_t list = 1; list <= t * h; ++list) out.ends.push_back(list * k);
  parallel_for(t * h, kRowsPerThread, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t row = begin; row < end; ++row) {
      const T* score = all + (row % h * t + row / h) * n;
      std::iota(order.begin(), order.end(), 0);
      const auto better = [&](int64_t a, int64_t b) {
        return ranks_before(score[a], a, score[b], b);
      };
      if (k < n) std::nth_element(order.begin(), order.begin() + k, order.end(), better);
      std::sort(order.begin(), order.begin() + k);
      std::copy_n(order.begin(), k, out.keys.begin() + row * k);
    }
  });
  return out;
}

template <class T>
FoundKeys KeySearch::sharing(const Tensor& q_THD, const Tensor& buckets_THR, int64_t k) const {
  const int64_t t = q_THD.size(0), h = q_THD.size(1), d = q_THD.size(2),
                rounds = buckets_THR.size(2), n = buckets_HRN_.size(2);
  const Tensor q = q_THD.contiguous(),
               own = buckets_THR.detach().to(at::kCPU, at::kByte).contiguous();
  std::vector<Tensor> keys;
  for (const Tensor& part : keys_) keys.push_back(part.to(q.scalar_type()));
  std::vector<std::vector<int64_t>> lists(static_cast<size_t>(t * h));
  std::vector<int64_t> scored(lists.size());
  parallel_for(t * h, kRowsPerThread, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> shared(static_cast<size_t>(n));
    std::vector<std::pair<double, int64_t>> candidates;
    for (int64_t row = begin; row < end; ++row) {
      std::fill(shared.begin(), shared.end(), uint8_t{0});
      for (int64_t r = 0; r < rounds; ++r) {
        const uint8_t bucket = own.const_data_ptr<uint8_t>()[row * rounds + r];
        const uint8_t* of_keys =
            buckets_HRN_.const_data_ptr<uint8_t>() + (row % h * rounds + r) * n;
        for (int64_t i = 0; i < n; ++i)
          shared[static_cast<size_t>(i)] |= static_cast<uint8_t>(of_keys[i] == bucket);
      }
      candidates.clear();
      int64_t before = 0;
      for (const Tensor& part : keys) {
        const T* first = part.const_data_ptr<T>() + row % h * d;
        for (int64_t i = 0; i < part.size(0); ++i)
          if (shared[static_cast<size_t>(before + i)] != 0)
            candidates.emplace_back(
                product(q.const_data_ptr<T>() + row * d, first + i * part.stride(0), d),
                before + i);
        before += part.size(0);
      }
      scored[static_cast<size_t>(row)] = static_cast<int64_t>(candidates.size());
      const auto better = [](const auto& a, const auto& b) {
        return ranks_before(a.first, a.second, b.first, b.second);
      };
      if (k < static_cast<int64_t>(candidates.size())) {
        std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), better);
        candidates.resize(static_cast<size_t>(k));
      }
      std::vector<int64_t>& list = lists[static_cast<size_t>(row)];
      for (const auto& [score, key] : candidates) list.push_back(key);
      std::sort(list.begin(), list.end());
    }
  });
  FoundKeys out;
  for (const std::vector<int64_t>& list : lists) {
    out.keys.insert(out.keys.end(), list.begin(), list.end());
    out.ends.push_back(static_cast<int64_t>(out.keys.size()));
  }
  out.scored = std::accumulate(scored.begin(), scored.end(), int64_t{0});
  return out;
}

FoundKeys KeySearch::nearest(const Tensor& q_THD, const Tensor& buckets_THR, int64_t k) const {
  const Tensor q = plain_rows(q_THD);
  return q.scalar_type() == at::kDouble ? sharing<double>(q, buckets_THR, k)
                                        : sharing<float>(q, buckets_THR, k);
}

FoundKeys KeySearch::nearest(const Tensor& q_THD, int64_t k) {
  const at::NoGradGuard no_gradients;
  score(q_THD);
  return scores_HTN_.scalar_type() == at::kDouble ? greatest<double>(k) : greatest<float>(k);
}

}  // namespace tessera::ops
