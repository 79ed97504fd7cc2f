#include "tessera/ops/linear/retention.h"

#include <cmath>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/product.h"

namespace tessera::ops {
namespace {

// rows of scores in memory at a time
constexpr int64_t kRetentionQueryBlock = 32;        // of the kernel
constexpr int64_t kRetentionQueryBlockPlain = 128;  // of torch's operations

Tensor magnitudes_plain(const Tensor& q_THK, const Tensor& k_THK, const Tensor& log_decay_H) {
  const auto type = wide(q_THK);
  const int64_t t = q_THK.size(0);
  const Tensor q_HTK = q_THK.to(type).transpose(0, 1), k_HKT = k_THK.to(type).permute({1, 2, 0}),
               position = at::arange(t, q_HTK.options()),
               log_decay = log_decay_H.to(type).reshape({-1, 1, 1});
  std::vector<Tensor> sums;
  for (int64_t first = 0; first < t; first += kRetentionQueryBlockPlain) {
    const int64_t n = std::min(kRetentionQueryBlockPlain, t - first), seen = first + n;
    const Tensor scores = ops::product(q_HTK.narrow(1, first, n), k_HKT.narrow(2, 0, seen)).abs();
    const Tensor distance =
        position.narrow(0, first, n).unsqueeze(1) - position.narrow(0, 0, seen).unsqueeze(0);
    sums.push_back((scores * at::exp(log_decay * distance.clamp_min(0))).tril(first).sum(-1));
  }
  return sums.empty() ? q_THK.select(-1, 0) : at::cat(sums, 1).t();
}

Tensor magnitudes_kernel(const Tensor& q_THK, const Tensor& k_THK, const Tensor& log_decay_H) {
  const int64_t t = q_THK.size(0), heads = q_THK.size(1), width = q_THK.size(2);
  const Tensor q_HTK = q_THK.transpose(0, 1).contiguous(),
               k_HTK = k_THK.transpose(0, 1).contiguous(),
               decay_H = log_decay_H.to(at::kDouble).exp().contiguous();
  Tensor out = at::empty({t, heads}, q_HTK.options());
  Tensor block = at::empty({std::min(t, kRetentionQueryBlock), t}, q_HTK.options());
  auto *scores = block.data_ptr<float>(), *sums = out.data_ptr<float>();
  for (int64_t h = 0; h < heads; ++h) {
    const float *q = q_HTK.const_data_ptr<float>() + h * t * width,
                *k = k_HTK.const_data_ptr<float>() + h * t * width;
    const double decay = decay_H.const_data_ptr<double>()[h];
    for (int64_t first = 0; first < t; first += kRetentionQueryBlock) {
      const int64_t rows = std::min(kRetentionQueryBlock, t - first), seen = first + rows;
      kernels::matmul(q + first * width, rows, width, width, DType::f32, k, seen, nullptr, scores,
                      t);
      parallel_for(rows, 1 + (int64_t{1} << 14) / (1 + seen), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double sum = 0;  // the last score has decayed least
          for (int64_t j = 0; j <= first + i; ++j)
            sum = sum * decay + std::abs(static_cast<double>(scores[i * t + j]));
          sums[(first + i) * heads + h] = static_cast<float>(sum);
        }
      });
    }
  }
  return out;
}

}  // namespace

Tensor retention_decay_norms(const Tensor& log_decay_H, int64_t start, int64_t n) {
  // number by number: vectors and their remainders round differently
  const Tensor log_decay = log_decay_H.to(at::kCPU, at::kDouble).contiguous();
  const int64_t heads = log_decay.size(0);
  const auto* log = log_decay.const_data_ptr<double>();
  Tensor out = at::empty({n, heads}, log_decay.options());
  auto* to = out.data_ptr<double>();
  for (int64_t t = 0; t < n; ++t)
    for (int64_t h = 0; h < heads; ++h)
      *to++ =
          std::sqrt(std::expm1(static_cast<double>(start + t + 1) * log[h]) / std::expm1(log[h]));
  return out.to(log_decay_H.device());
}

Tensor retention_magnitudes(const Tensor& q_THK, const Tensor& k_THK, const Tensor& log_decay_H) {
  const bool kernels = kernel_serves(Op::retention_magnitudes, q_THK);
  const at::NoGradGuard no_gradients;
  return (kernels ? magnitudes_kernel : magnitudes_plain)(q_THK, k_THK, log_decay_H);
}

}  // namespace tessera::ops
