#include "tessera/train/optimizer/lion.h"

namespace tessera::train {
namespace {

struct LionConstants {
  float beta1, rest1, beta2, rest2, keep, rate, scale;
};

void lion_range(float* __restrict w,
                const float* __restrict g,
                float* __restrict m,
                int64_t n,
                const LionConstants c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.scale;
    const float mixed = c.beta1 * m[i] + c.rest1 * gradient;
    m[i] = c.beta2 * m[i] + c.rest2 * gradient;
    const float sign = static_cast<float>(mixed > 0) - static_cast<float>(mixed < 0);
    w[i] = c.keep * w[i] - c.rate * sign;
  }
}

}  // namespace

Lion::Lion(std::vector<ParameterInfo> slots, double beta1, double beta2)
    : slots_(std::move(slots)),
      beta1_(beta1),
      beta2_(beta2),
      pieces_(slots_),
      m_("first_moment", pieces_) {}

void Lion::update(std::span<const Parameter> parameters, const Step& step) {
  pieces_.each(parameters, [&](const ElementChunks::Piece& piece) {
    const ParameterInfo& slot = slots_[piece.slot];
    const double lr = step.lr * slot.lr_factor;
    const LionConstants c{
        .beta1 = static_cast<float>(beta1_),
        .rest1 = static_cast<float>(1 - beta1_),
        .beta2 = static_cast<float>(beta2_),
        .rest2 = static_cast<float>(1 - beta2_),
        .keep = static_cast<float>(1 - lr * slot.weight_decay),
        .rate = static_cast<float>(lr),
        .scale = static_cast<float>(step.scale),
    };
    lion_range(parameters[piece.slot].weight + piece.begin,
               parameters[piece.slot].gradient + piece.begin, m_.at(piece), piece.end - piece.begin,
               c);
  });
}

std::vector<RuleState> Lion::state() {
  std::vector<RuleState> out;
  m_.append(slots_, out);
  return out;
}

}  // namespace tessera::train
