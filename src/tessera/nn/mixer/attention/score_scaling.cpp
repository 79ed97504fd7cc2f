#include "tessera/nn/mixer/attention/score_scaling.h"

#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {

ScoreScaling::ScoreScaling(const Builder& builder, const ScoreScaleConfig& config, int64_t head_dim)
    : one_(config.scale == ScoreScale::learned) {
  if (config.learns_scale()) factors_ = builder.weight("scale");
  (config.scale_on == ScaleOn::query ? on_queries_ : on_logits_) =
      config.score_scale(head_dim, builder.scope().layer);
}

Tensor ScoreScaling::learned(const Tensor& q_NHD) const {
  return factors_ ? q_NHD * ops::spread(factors_->tensor().to(q_NHD.options()).unsqueeze(-1), q_NHD)
                  : q_NHD;
}

ScoreScalingStep ScoreScaling::step(StepWeights& weights) const {
  return {weights.numbers(factors_), one_, static_cast<float>(on_queries_),
          static_cast<float>(on_logits_)};
}

void ScoreScalingStep::operator()(float* q, int64_t heads, int64_t head_dim, float further) const {
  const float* factors = learned.data();
  for (int64_t h = 0; h < heads; ++h, q += head_dim) {
    const auto by = [&](float factor) {
      for (int64_t j = 0; j < head_dim; ++j) q[j] *= factor;
    };
    if (factors != nullptr) by(factors[one ? 0 : h]);
    if (on_queries != 1) by(on_queries);
    if (further != 1) by(further);
  }
}

}  // namespace tessera::nn
