#include "tessera/nn/mixer/linear/retention.h"

#include <cmath>

#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/position/rope.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/linear/retention.h"

namespace tessera::nn {

std::unique_ptr<Position> build(const RopeConfig& config, const Builder& builder);

namespace {

/// theta^{-m / (K/2 - 1)} is rope with the base theta^{K / (K - 2)}.
RopeConfig rotation(const RetentionConfig& config) {
  const auto width = static_cast<double>(config.key_dim);
  RopeConfig rope;
  rope.rotary_dim = config.key_dim;
  rope.theta = config.theta;
  if (config.angles == RetentionAngles::linear) {
    rope.layout = RopeLayout::interleaved;
    if (config.key_dim > 2) rope.theta = std::pow(config.theta, width / (width - 2));
  }
  return rope;
}

class Retention final : public Mixer {
 public:
  Retention(const RetentionConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        g_(builder, "g"),
        o_(builder, "o"),
        norm_(builder.optional("norm.weight")),
        decay_(builder.optional("decay")),
        log_decay_H_(at::tensor(config.log_decays(), at::kDouble)) {
    if (config.angles != RetentionAngles::none) rotation_ = build(rotation(config), builder);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    Tensor q_NHK = q_(x_ND).reshape({n, h, k});
    Tensor k_NHK = k_(x_ND).reshape({n, h, k}) * (1 / std::sqrt(static_cast<double>(k)));
    const Tensor v_NE = v_(x_ND);
    if (rotation_) {
      q_NHK = rotation_->rotate(q_NHK, Side::query, context);
      k_NHK = rotation_->rotate(k_NHK, Side::key, context);
    }
    const Tensor log_decay_H = log_decays(x_ND);
    // the gradient of decays is that of a number for each token
    const Tensor log_decay_NH =
        log_decay_H.requires_grad() ? ops::expanded(log_decay_H, {n, h}) : Tensor();
    const Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(q_NHK, {h, k}), run.of(k_NHK, {h, k}), run.of(v_NE, {h, v}),
                    log_decay_NH.defined() ? run.of(log_decay_NH, {h}) : log_decay_H},
                   config_.chunk, 0);
    });
    Tensor y_NHV = y_NE.reshape({n, h, v});
    if (config_.normalise != RetentionNormalise::none)
      y_NHV = (y_NHV / divisors(q_NHK, k_NHK, log_decay_H.detach(), *context.batch).unsqueeze(-1))
                  .to(y_NE.scalar_type());
    const Tensor normed =
        ops::rms_norm(y_NHV, norm_ ? norm_->tensor() : Tensor(), 0, config_.norm_eps);
    return o_(ops::gated(g_(x_ND), normed.reshape({n, h * v}), ops::Activation::silu));
  }

 private:
  /// ln gamma [H].
  Tensor log_decays(const Tensor& like) const {
    if (!decay_) return log_decay_H_.to(like.device());
    return -ops::softplus(-decay_->tensor().to(ops::wide(like)));
  }

  /// [N, H], constant for gradients.
  Tensor divisors(const Tensor& q_NHK,
                  const Tensor& k_NHK,
                  const Tensor& log_decay_H,
                  const Batch& batch) const {
    const BySegment part(batch);
    return over_segments(batch,
                         [&](size_t i, const Segment& s) {
                           const Tensor root =
                               ops::retention_decay_norms(log_decay_H, s.start, s.length);
                           if (config_.normalise == RetentionNormalise::decays) return root;
                           const Tensor sums = ops::retention_magnitudes(
                               part(q_NHK, i), part(k_NHK, i), log_decay_H);
                           return root * (sums / root).clamp(1, kLargestSum);
                         })
        .to(ops::wide(q_NHK));
  }

  static constexpr double kLargestSum = 5e4;  // as published: within float16
  RetentionConfig config_;
  Linear q_, k_, v_, g_, o_;
  WeightPtr norm_, decay_;
  Tensor log_decay_H_;
  std::unique_ptr<Position> rotation_;
};

}  // namespace

std::unique_ptr<Mixer> build(const RetentionConfig& config, const Builder& builder) {
  return std::make_unique<Retention>(config, builder);
}

}  // namespace tessera::nn
