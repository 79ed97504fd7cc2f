// Which parameters of a model are trained, and in which groups.
#pragma once

#include <functional>
#include <map>

#include "tessera/model/weight_adapter.h"
#include "tessera/train/optimizer/gradients.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// Parameters that an optimiser treats alike.
struct ParameterGroup {
  std::string name;  // "decayed" or "undecayed", behind a rule's number where one made it
  double lr_factor = 1;
  double weight_decay = 0;
  std::optional<RuleRecipe> optimizer = {};  // another one than the recipe's
  size_t rule = 0;                           // number of the rule that says so
};

/// A parameter that is trained and belongs to no model.
struct ParameterBeside {
  spec::ParamDecl decl;
  Tensor tensor;
};

/// A model that is trained beside a run's own, and kept in a folder of that name in its
/// checkpoints. Its parameters are trained behind that name: "generator.layers.0.mixer.q.weight";
/// those that it has in common with the run's own model are that one's.
struct Companion {
  std::string name;
  const model::Model* model = nullptr;  // which must outlive what it is given to; null = none
};

/// What an objective trains beside a run's model.
struct AuxiliaryParameters {
  std::vector<ParameterBeside> parameters = {};  // float32 leaves, by names that no model has
  Companion companion = {};
  /// Parameters of the run's model that are not trained themselves: `derive` makes them of what is.
  /// It is called before they are read.
  std::vector<std::string> derived = {};
  std::function<void()> derive = nullptr;
};

/// The trained parameters of a model in the order of their declaration. What lies in a file's
/// storage is never trained, and neither is what its declaration or a recipe freezes: no gradient
/// is computed for it and nothing writes to it.
class ParameterSet {
 public:
  struct Entry {
    spec::ParamDecl decl;
    Tensor tensor;  // float32, a leaf
    size_t group;
  };
  /// Throws Error(spec) where a rule of optimizer.groups matches no parameter, and where nothing is
  /// left to train. `model` must outlive the set.
  /// `adapters` are trained behind what the model has of its own, under the names of their weights
  /// with the names of model::kOverlayParts behind them, and what stands `beside` behind these.
  ParameterSet(const model::Model& model,
               const OptimizerRecipe& recipe,
               const std::vector<model::WeightAdapter>& adapters = {},
               const AuxiliaryParameters& beside = {});

  const std::vector<Entry>& trained() const { return trained_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  const ParameterGroup& group_of(const Entry& entry) const { return groups_[entry.group]; }
  /// Names of the others.
  const std::vector<std::string>& frozen() const { return frozen_; }

  /// Those of the others that follow a rule of their own (spec::UpdateRule), unless a recipe
  /// freezes them.
  const std::vector<Entry>& ruled() const { return ruled_; }
  /// Moves them by what parts counted over an update, by the statistics' names. A parameter whose
  /// statistic nobody counted stays as it is.
  void follow_rules(const std::map<std::string, Tensor>& counts) const;

  void clear_gradients() const;
  void divide_gradients(double by) const;
  /// Of trained(), in their order.
  std::vector<Gradient> gradients() const;

 private:
  size_t group(ParameterGroup wanted);

  std::vector<Entry> trained_, ruled_;
  std::vector<ParameterGroup> groups_;
  std::vector<std::string> frozen_;
};

/// The parts of an adapter as parameters, in the order of model::kOverlayParts; a whole weight is
/// one of the model's own. Factors, lengths and virtual tokens do not decay.
std::vector<std::pair<spec::ParamDecl, Tensor>> parameters_of(const model::WeightAdapter& adapter);

/// Whether a name matches a pattern, in which * stands for any characters.
bool matches(std::string_view name, std::string_view pattern);

}  // namespace tessera::train
