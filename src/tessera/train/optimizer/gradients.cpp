#include "tessera/train/optimizer/gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tessera/base/threads.h"

namespace tessera::train {
namespace {

// 64 KiB: a unit of work, small compared with any cache's share of the whole
constexpr int64_t kSummed = 16384;

double sum_of_squares(const float* g, int64_t n) {
  constexpr int64_t kLanes = 8;
  std::array<double, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = g[i + lane];
      sums[static_cast<size_t>(lane)] += value * value;
    }
  for (; i < n; ++i) sums[0] += static_cast<double>(g[i]) * g[i];
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

/// Sum of squares, chunk after chunk.
double square_of(std::span<const Gradient> gradients) {
  struct Chunk {
    const float* data;
    int64_t elements;
  };
  std::vector<Chunk> chunks;
  for (const Gradient& g : gradients)
    for (int64_t begin = 0; g.data != nullptr && begin < g.elements; begin += kSummed)
      chunks.push_back({g.data + begin, std::min(kSummed, g.elements - begin)});
  std::vector<double> sums(chunks.size());
  parallel_for(static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto c = static_cast<size_t>(begin); c < static_cast<size_t>(end); ++c)
      sums[c] = sum_of_squares(chunks[c].data, chunks[c].elements);
  });
  double sum = 0;
  for (const double chunk : sums) sum += chunk;
  return sum;
}

}  // namespace

double norm_of(std::span<const Gradient> gradients) {
  return std::sqrt(square_of(gradients));
}

double norm_of_change(std::span<const Gradient> now, std::vector<std::vector<float>>& before) {
  before.resize(now.size());
  double square = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i].data == nullptr) continue;
    const int64_t n = now[i].elements;
    before[i].resize(static_cast<size_t>(n), 0.0F);
    float* kept = before[i].data();
    const float* g = now[i].data;
    const auto each = [&](auto change) {
      parallel_for(n, kSummed, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) change(k);
      });
    };
    each([&](int64_t k) { kept[k] = g[k] - kept[k]; });
    const Gradient changed{kept, n};
    square += square_of({&changed, 1});
    each([&](int64_t k) { kept[k] = g[k]; });
  }
  return std::sqrt(square);
}

int64_t last_nonfinite(std::span<const Gradient> gradients) {
  for (size_t i = gradients.size(); i-- > 0;)
    if (!std::isfinite(square_of(gradients.subspan(i, 1)))) return static_cast<int64_t>(i);
  return -1;
}

}  // namespace tessera::train
