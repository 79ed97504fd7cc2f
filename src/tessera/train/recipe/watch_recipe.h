// Early stopping and monitoring of a run (run_watch.h). Has no effect on the updates, so a resumed
// run may have other values. Torch-free.
#pragma once

#include <optional>
#include <string>

#include "tessera/spec/fields.h"

namespace tessera::train {

/// Conditions for stopping before the last step.
struct StopRecipe {
  std::string metric = "valid_loss";
  int64_t patience = 0;
  double min_delta = 0;
  int64_t from = 0;
  std::optional<double> reach = {};
  double diverged = 0;

  /// True if it needs evaluations.
  bool by_metric() const { return patience > 0 || reach; }

  static constexpr auto fields() {
    using C = StopRecipe;
    using spec::field;
    return std::tuple{
        field("metric", &C::metric,
              "metric: valid_loss, accuracy, valid_bits_per_byte, or one of \"losses\" in the log "
              "that begins with valid_"),
        field("patience", &C::patience,
              "early stopping: evaluations in a row without an improvement; 0 = never", {.min = 0}),
        field("min_delta", &C::min_delta, "minimum improvement", {.min = 0}),
        field("from", &C::from, "first update that counts", {.min = 0}),
        field("reach", &C::reach, "target value that stops the run; null = none"),
        field(
            "diverged", &C::diverged,
            "divergence: nats of the running mean of the loss above its minimum that stop the run "
            "with an error; 0 = never",
            {.min = 0})};
  }
};

/// Monitoring in addition to losses.
struct WatchRecipe {
  double spike = 6;
  int64_t idle_experts = 200;
  int64_t norms = 0;
  int64_t noise_scale = 0;

  static constexpr auto fields() {
    using C = WatchRecipe;
    using spec::field;
    return std::tuple{
        field("spike", &C::spike,
              "loss spike: standard deviations above the running mean for a warning; 0 = never",
              {.min = 0}),
        field("idle_experts", &C::idle_experts,
              "dead experts: updates without a token for a warning; 0 = never", {.min = 0}),
        field("norms", &C::norms,
              "updates between norms of every layer's gradient, weights and update; 0 = never",
              {.min = 0}),
        field("noise_scale", &C::noise_scale,
              "updates between measurements of the gradient noise scale, which needs "
              "train.accumulate of 2 or more; 0 = never",
              {.min = 0})};
  }
};

}  // namespace tessera::train
