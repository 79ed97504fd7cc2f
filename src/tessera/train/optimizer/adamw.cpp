#include "tessera/train/optimizer/adamw.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

template <bool kCoupled>
void adamw_range(float* __restrict w,
                 const float* __restrict g,
                 float* __restrict m,
                 float* __restrict v,
                 int64_t n,
                 const AdamConstants c) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = kCoupled ? g[i] * c.scale + c.decay * w[i] : g[i] * c.scale;
    const float first = c.beta1 * m[i] + c.rest1 * gradient;
    const float second = c.beta2 * v[i] + c.rest2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    w[i] = c.keep * w[i] - c.rate * first / (std::sqrt(second) * c.root + c.eps);
  }
}

}  // namespace

AdamConstants::AdamConstants(const AdamWSettings& settings,
                             const UpdateRule::Step& step,
                             const ParameterInfo& slot)
    : beta1(static_cast<float>(settings.beta1)),
      rest1(static_cast<float>(1 - settings.beta1)),
      beta2(static_cast<float>(settings.beta2)),
      rest2(static_cast<float>(1 - settings.beta2)),
      eps(static_cast<float>(settings.eps)),
      scale(static_cast<float>(step.scale)),
      decay(static_cast<float>(slot.weight_decay)) {
  const auto t = static_cast<double>(step.t);
  const double lr = step.lr * slot.lr_factor;
  root = static_cast<float>(1 / std::sqrt(1 - std::pow(settings.beta2, t)));
  keep = settings.coupled ? 1 : static_cast<float>(1 - lr * slot.weight_decay);
  rate = static_cast<float>(lr / (1 - std::pow(settings.beta1, t)));
}

AdamW::AdamW(std::vector<ParameterInfo> slots, AdamWSettings settings)
    : slots_(std::move(slots)),
      settings_(settings),
      pieces_(slots_),
      m_("first_moment", pieces_),
      v_("second_moment", pieces_) {}

void AdamW::update(std::span<const Parameter> parameters, const Step& step) {
  require(parameters.size() == slots_.size(), "adamw", "{} parameters; expected {}",
          parameters.size(), slots_.size());
  pieces_.each(parameters, [&](const ElementChunks::Piece& piece) {
    const AdamConstants c(settings_, step, slots_[piece.slot]);
    const Parameter& parameter = parameters[piece.slot];
    const auto range = settings_.coupled ? adamw_range<true> : adamw_range<false>;
    range(parameter.weight + piece.begin, parameter.gradient + piece.begin, m_.at(piece),
          v_.at(piece), piece.end - piece.begin, c);
  });
}

std::vector<RuleState> AdamW::state() {
  std::vector<RuleState> out;
  m_.append(slots_, out);
  v_.append(slots_, out);
  return out;
}

}  // namespace tessera::train
