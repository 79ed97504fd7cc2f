#include "tessera/train/adamw.h"

#include <algorithm>
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

void AdamW::update(std::span<const Parameter> parameters, int64_t t, double lr, double scale) {
  require(parameters.size() == slots_.size(), "adamw", "{} parameters; expected {}",
          parameters.size(), slots_.size());
  Constants c{};
  c.beta1 = static_cast<float>(settings_.beta1);
  c.rest1 = static_cast<float>(1 - settings_.beta1);
  c.beta2 = static_cast<float>(settings_.beta2);
  c.rest2 = static_cast<float>(1 - settings_.beta2);
  c.root = static_cast<float>(1 / std::sqrt(1 - std::pow(settings_.beta2, static_cast<double>(t))));
  c.eps = static_cast<float>(settings_.eps);
  c.scale = static_cast<float>(scale);
  const double corrected = 1 - std::pow(settings_.beta1, static_cast<double>(t));
  parallel_for(static_cast<int64_t>(chunks_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = chunks_[static_cast<size_t>(i)];
      const Parameter& parameter = parameters[chunk.slot];
      if (parameter.gradient == nullptr) continue;
      const Slot& slot = slots_[chunk.slot];
      const double own_lr = lr * slot.lr_factor;
      Constants mine = c;
      mine.keep = static_cast<float>(1 - own_lr * slot.weight_decay);
      mine.rate = static_cast<float>(own_lr / corrected);
      const int64_t at = begins_[chunk.slot] + chunk.begin;
      update_range(parameter.weight + chunk.begin, parameter.gradient + chunk.begin, m_.data() + at,
                   v_.data() + at, chunk.end - chunk.begin, mine);
    }
  });
}

}  // namespace tessera::train
