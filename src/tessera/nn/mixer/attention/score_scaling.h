// The factor on the scores (ScoreScaleConfig) in a call: where it is learned or on the queries,
// they are multiplied by it; else it is ops::ScoreOptions::scale.
#pragma once

#include "tessera/nn/mixer/attention/score_scale.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {

/// ScoreScaling of rows in memory (decode_step.h).
struct ScoreScalingStep {
  StepNumbers learned;  // one, or one per query head; none where nothing is learned
  bool one = false;
  float on_queries = 1, on_logits = 1;
  /// Queries q [heads, head_dim] of one token times the factors on them, and times `further`, on
  /// this thread.
  void operator()(float* q, int64_t heads, int64_t head_dim, float further) const;
};

class ScoreScaling {
 public:
  /// Of heads of `head_dim` channels in the layer of the builder's scope.
  ScoreScaling(const Builder& builder, const ScoreScaleConfig& config, int64_t head_dim);
  /// Queries [N, H, D] times the learned factors.
  Tensor learned(const Tensor& q_NHD) const;
  /// Queries times the factor that is not learned, where it is on them.
  Tensor on_queries(const Tensor& q_NHD) const {
    return on_queries_ == 1 ? q_NHD : q_NHD * on_queries_;
  }
  /// The factor that is not on the queries.
  double on_logits() const { return on_logits_; }
  ScoreScalingStep step(StepWeights& weights) const;

 private:
  WeightPtr factors_;  // [1] or [H]; null where nothing is learned
  bool one_;
  double on_queries_ = 1, on_logits_ = 1;
};

}  // namespace tessera::nn
