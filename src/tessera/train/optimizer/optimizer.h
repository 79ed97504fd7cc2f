// What turns gradients into new values of parameters: the rules of a recipe, each on the parameters
// of a ParameterSet that it is for, and the average that is kept of them.
#pragma once

#include <memory>

#include "tessera/train/loop/parameters.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

class Optimizer {
 public:
  /// `parameters` must outlive it.
  Optimizer(const OptimizerRecipe& recipe, const ParameterSet& parameters);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update at `factor` of the base rates, with the gradients of the set times `scale`
  /// (clipping). A parameter without a gradient stays as it is.
  void update(double factor, double scale);
  /// Made so far: an update that was left out is none.
  int64_t updates() const { return updates_; }
  void restore_updates(int64_t updates) { updates_ = updates; }

  /// Whether what is evaluated and saved as the model are not the values that are trained.
  bool averages() const;
  /// Puts the average into the parameters, and back what is trained, bit for bit.
  void show_average();
  void hide_average();

  /// A tensor that the next update depends on, by the name that a checkpoint gives it; it shares
  /// memory with the optimiser. While an average is shown, what is trained is among them.
  struct StateTensor {
    std::string name;
    std::string parameter;  // that it belongs to; "" = to no single one
    Tensor tensor;
  };
  std::vector<StateTensor> state();

  /// How many bytes of states there are, by rule: "muon 1.2 MB, adamw 0.4 MB".
  std::string memory_text();

 private:
  struct Member {  // a rule with the parameters it is for
    std::string name;
    double lr;
    std::vector<size_t> entries;  // of parameters_.trained()
    std::unique_ptr<UpdateRule> rule;
  };
  void add_rule(const RuleRecipe& recipe, std::vector<size_t> entries);
  std::vector<Parameter> memory_of(const Member& member,
                                   const std::vector<Gradient>& gradients) const;
  std::span<float> weights(size_t entry) const;

  const ParameterSet& parameters_;
  std::optional<AverageRecipe> average_;
  std::vector<Member> members_;
  int64_t updates_ = 0;
  /// Of every trained parameter: its average, or while that is shown what is trained. Without an
  /// average in the recipe, only while shown, and of rules that average alone.
  std::vector<std::vector<float>> beside_;
  bool shown_ = false;
};

/// The average in the parameters, while it lives; nothing where there is none.
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
