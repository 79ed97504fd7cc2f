// Applies gradients to parameters: the update rules of a recipe, each on its parameters of a
// ParameterSet, and weight averaging.
#pragma once

#include <memory>

#include "tessera/train/loop/parameters.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

class Optimizer {
 public:
  /// `parameters` must outlive it. State is on their device.
  Optimizer(const OptimizerRecipe& recipe, const ParameterSet& parameters);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update at `factor` times the base learning rates, with gradients times `scale` (clipping).
  /// A parameter without a gradient does not change.
  void update(double factor, double scale);
  /// Number of updates, without skipped ones.
  int64_t updates() const { return updates_; }
  void restore_updates(int64_t updates) { updates_ = updates; }

  /// True if the evaluated and saved weights are an average, not the trained values.
  bool averages() const;
  /// Puts the average into the parameters; hide_average() restores the trained values, bit for bit.
  void show_average();
  void hide_average();

  /// A tensor that the next update depends on, with its name in checkpoints; shares memory with the
  /// optimizer, on the parameters' device or the host. While an average is shown, the trained
  /// values are among them.
  struct StateTensor {
    std::string name;
    std::string parameter;  // its parameter; "" = none
    Tensor tensor;
  };
  std::vector<StateTensor> state();

  /// Bytes of state by rule: "muon 1.2 MB, adamw 0.4 MB".
  std::string memory_text();

 private:
  struct Member {  // a rule with its parameters
    std::string name;
    double lr;
    std::vector<size_t> entries;  // of parameters_.trained()
    std::unique_ptr<UpdateRule> rule;
  };
  void add_rule(const RuleRecipe& recipe, std::vector<size_t> entries);
  std::vector<Parameter> memory_of(const Member& member,
                                   const std::vector<Gradient>& gradients) const;
  Tensor values(size_t entry) const;
  float* weights(size_t entry) const;
  void swap_average();

  const ParameterSet& parameters_;
  std::optional<AverageRecipe> average_;
  std::vector<Member> members_;
  int64_t updates_ = 0;
  /// For every trained parameter: its average, or the trained values while the average is shown.
  /// Without an average in the recipe, only while shown, for rules with an average of their own;
  /// undefined for parameters of other rules.
  std::vector<Tensor> swapped_;
  bool shown_ = false;
};

/// Shows the average during its lifetime; has no effect without one.
class ShownAverage {
 public:
  explicit ShownAverage(Optimizer& optimizer) : optimizer_(optimizer) { optimizer_.show_average(); }
  ~ShownAverage() { optimizer_.hide_average(); }
  ShownAverage(const ShownAverage&) = delete;
  ShownAverage& operator=(const ShownAverage&) = delete;

 private:
  Optimizer& optimizer_;
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe,
                                          const ParameterSet& parameters);

}  // namespace tessera::train
