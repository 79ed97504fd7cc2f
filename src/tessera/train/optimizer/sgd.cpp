#include "tessera/train/optimizer/sgd.h"

namespace tessera::train {
namespace {

struct SgdConstants {
  float momentum, fresh, ahead, behind, rate, scale, decay;
};

void sgd_range(float* __restrict w,
               const float* __restrict g,
               float* __restrict b,
               int64_t n,
               const SgdConstants c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * c.scale + c.decay * w[i];
    const float sum = c.momentum * b[i] + c.fresh * gradient;
    b[i] = sum;
    w[i] -= c.rate * (c.ahead * gradient + c.behind * sum);
  }
}

void sgd_range(float* __restrict w, const float* __restrict g, int64_t n, const SgdConstants c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) w[i] -= c.rate * (g[i] * c.scale + c.decay * w[i]);
}

}  // namespace

Sgd::Sgd(std::vector<ParameterInfo> slots, SgdSettings settings)
    : slots_(std::move(slots)),
      settings_(settings),
      pieces_(slots_),
      kept_(settings.momentum > 0 ? slots_ : std::vector<ParameterInfo>()),
      b_("momentum", kept_) {}

void Sgd::update(std::span<const Parameter> parameters, const Step& step) {
  const auto mu = static_cast<float>(settings_.momentum);
  pieces_.each(parameters, [&](const ElementChunks::Piece& piece) {
    const ParameterInfo& slot = slots_[piece.slot];
    const SgdConstants c{
        .momentum = step.t == 1 ? 0 : mu,
        .fresh = step.t == 1 ? 1 : static_cast<float>(1 - settings_.dampening),
        .ahead = settings_.nesterov ? 1.0F : 0.0F,
        .behind = settings_.nesterov ? mu : 1.0F,
        .rate = static_cast<float>(step.lr * slot.lr_factor),
        .scale = static_cast<float>(step.scale),
        .decay = static_cast<float>(slot.weight_decay),
    };
    float* w = parameters[piece.slot].weight + piece.begin;
    const float* g = parameters[piece.slot].gradient + piece.begin;
    if (mu > 0)
      sgd_range(w, g, b_.at(piece), piece.end - piece.begin, c);
    else
      sgd_range(w, g, piece.end - piece.begin, c);
  });
}

std::vector<RuleState> Sgd::state() {
  std::vector<RuleState> out;
  if (settings_.momentum > 0) b_.append(slots_, out);
  return out;
}

}  // namespace tessera::train
