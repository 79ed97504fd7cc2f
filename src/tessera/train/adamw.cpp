#include "tessera/train/adamw.h"

#include <array>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"

namespace tessera::train {
namespace {

// 64 KiB of each of four arrays: a chunk of work, far below any cache's share of the whole
constexpr int64_t kChunk = 16384;

struct Constants {
  float beta1, rest1, beta2, rest2, keep, rate, root, eps, scale;
};

void update_range(float* __restrict w,
                  const float* __restrict g,
                  float* __restrict m,
                  float* __restrict v,
                  int64_t n,
                  const Constants c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.scale;
    const float first = c.beta1 * m[i] + c.rest1 * gradient;
    const float second = c.beta2 * v[i] + c.rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    w[i] = c.keep * w[i] - c.rate * first / (std::sqrt(second) * c.root + c.eps);
  }
}

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

}  // namespace

AdamW::AdamW(std::vector<Slot> slots, AdamWSettings settings)
    : slots_(std::move(slots)), settings_(settings) {
  int64_t total = 0;
  for (size_t s = 0; s < slots_.size(); ++s) {
    begins_.push_back(total);
    total += slots_[s].elements;
    for (int64_t begin = 0; begin < slots_[s].elements; begin += kChunk)
      chunks_.push_back({s, begin, std::min(begin + kChunk, slots_[s].elements)});
  }
  m_.assign(static_cast<size_t>(total), 0);
  v_.assign(static_cast<size_t>(total), 0);
}

double AdamW::gradient_norm(std::span<const Parameter> parameters) const {
  require(parameters.size() == slots_.size(), "adamw", "{} parameters; expected {}",
          parameters.size(), slots_.size());
  std::vector<double> sums(chunks_.size());
  parallel_for(static_cast<int64_t>(chunks_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const Chunk& chunk = chunks_[static_cast<size_t>(c)];
      const float* gradient = parameters[chunk.slot].gradient;
      if (gradient != nullptr)
        sums[static_cast<size_t>(c)] =
            sum_of_squares(gradient + chunk.begin, chunk.end - chunk.begin);
    }
  });
  double sum = 0;
  for (const double chunk : sums) sum += chunk;
  return std::sqrt(sum);
}

void AdamW::update(std::span<const Parameter> parameters, int64_t t, double lr, double scale) {
  require(parameters.size() == slots_.size(), "adamw", "{} parameters; expected {}",
          parameters.size(), slots_.size());
  Constants c{};
  c.beta1 = static_cast<float>(settings_.beta1);
  c.rest1 = static_cast<float>(1 - settings_.beta1);
  c.beta2 = static_cast<float>(settings_.beta2);
  c.rest2 = static_cast<float>(1 - settings_.beta2);
  c.rate = static_cast<float>(lr / (1 - std::pow(settings_.beta1, static_cast<double>(t))));
  c.root = static_cast<float>(1 / std::sqrt(1 - std::pow(settings_.beta2, static_cast<double>(t))));
  c.eps = static_cast<float>(settings_.eps);
  c.scale = static_cast<float>(scale);
  const auto decay = static_cast<float>(1 - lr * settings_.weight_decay);
  parallel_for(static_cast<int64_t>(chunks_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = chunks_[static_cast<size_t>(i)];
      const Parameter& parameter = parameters[chunk.slot];
      if (parameter.gradient == nullptr) continue;
      Constants mine = c;
      mine.keep = slots_[chunk.slot].decays ? decay : 1;
      const int64_t at = begins_[chunk.slot] + chunk.begin;
      update_range(parameter.weight + chunk.begin, parameter.gradient + chunk.begin, m_.data() + at,
                   v_.data() + at, chunk.end - chunk.begin, mine);
    }
  });
}

int64_t last_nonfinite(std::span<const Parameter> parameters,
                       const std::vector<AdamW::Slot>& slots) {
  for (size_t s = slots.size(); s-- > 0;) {
    const float* gradient = parameters[s].gradient;
    if (gradient != nullptr && !std::isfinite(sum_of_squares(gradient, slots[s].elements)))
      return static_cast<int64_t>(s);
  }
  return -1;
}

}  // namespace tessera::train
