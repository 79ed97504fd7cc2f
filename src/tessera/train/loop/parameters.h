// The trained parameters of a model and their groups.
#pragma once

#include <functional>
#include <map>

#include "tessera/model/weight_adapter.h"
#include "tessera/train/loop/deferred_number.h"
#include "tessera/train/optimizer/gradients.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// Parameters with the same optimizer settings.
struct ParameterGroup {
  std::string name;  // "decayed" or "undecayed", after a rule's number if a rule made it
  double lr_factor = 1;
  double weight_decay = 0;
  std::optional<RuleRecipe> optimizer = {};  // if it differs from the recipe's
  size_t rule = 0;                           // number of the rule
};

/// A trained parameter that belongs to no model.
struct ParameterBeside {
  spec::ParamDecl decl;
  Tensor tensor;
};

/// A second model that is trained with a run's model and saved in a folder of that name in its
/// checkpoints. Its parameters have that name as prefix: "generator.layers.0.mixer.q.weight".
/// Parameters that it shares with the run's model keep the name of that model.
struct Companion {
  std::string name;
  const model::Model* model = nullptr;  // must outlive its users; null = none
};

/// What an objective trains in addition to a run's model.
struct AuxiliaryParameters {
  std::vector<ParameterBeside> parameters = {};  // float32 leaves with names that no model has
  Companion companion = {};
  /// Parameters of the run's model that are computed from trained ones: `derive` does that and is
  /// called before they are read.
  std::vector<std::string> derived = {};
  std::function<void()> derive = nullptr;
};

/// The trained parameters of a model in the order of declaration. Parameters in a file's storage,
/// and those frozen by declaration or recipe, are never trained: they have no gradients and are
/// never written.
class ParameterSet {
 public:
  struct Entry {
    spec::ParamDecl decl;
    Tensor tensor;  // float32, a leaf
    size_t group;
  };
  /// Throws Error(spec) if a rule of optimizer.groups matches no parameter, and if no parameter is
  /// trained, Error(internal) for parameters on several devices. `model` must outlive the set.
  /// Parameters of `adapters` follow those of the model, named by their weight with a suffix of
  /// model::kOverlayParts; auxiliary parameters come last.
  ParameterSet(const model::Model& model,
               const OptimizerRecipe& recipe,
               const std::vector<model::WeightAdapter>& adapters = {},
               const AuxiliaryParameters& auxiliary = {});

  const std::vector<Entry>& trained() const { return trained_; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  const ParameterGroup& group_of(const Entry& entry) const { return groups_[entry.group]; }
  /// Names of the other parameters.
  const std::vector<std::string>& frozen() const { return frozen_; }

  /// Of these, the ones with an update rule of their own (spec::UpdateRule), unless a recipe
  /// freezes them.
  const std::vector<Entry>& ruled() const { return ruled_; }
  /// Applies these rules with statistics of an update, by name. A parameter without statistics does
  /// not change.
  void follow_rules(const std::map<std::string, Tensor>& counts) const;

  void clear_gradients() const;
  void divide_gradients(double by) const;
  /// The device of trained().
  at::Device device() const { return trained_.front().tensor.device(); }
  /// Gradients of trained(), in that order, in the memory of device().
  std::vector<Gradient> gradients() const;
  /// Gradients and values of trained() in host memory: copies if they are on another device.
  std::vector<Gradient> host_gradients() const;
  std::vector<Gradient> host_values() const;
  /// Euclidean norm of all gradients; not finite if a gradient is not.
  DeferredNumber gradient_norm() const;

 private:
  size_t group(ParameterGroup wanted);

  std::vector<Entry> trained_, ruled_;
  std::vector<ParameterGroup> groups_;
  std::vector<std::string> frozen_;
};

/// The parts of an adapter as parameters, in the order of model::kOverlayParts; a whole weight is
/// one of the model's. Factors, magnitudes and virtual tokens have no weight decay.
std::vector<std::pair<spec::ParamDecl, Tensor>> parameters_of(const model::WeightAdapter& adapter);

/// True if a name matches a pattern, in which * matches any characters.
bool matches(std::string_view name, std::string_view pattern);

}  // namespace tessera::train
