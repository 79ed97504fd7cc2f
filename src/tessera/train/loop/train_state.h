// The state that training changes: model, trained parameters and optimizer.
#pragma once

#include "tessera/convert/experts.h"
#include "tessera/train/optimizer/optimizer.h"

namespace tessera::train {

/// Owns the model, the adapters and the optimizer of a run; `parameters` refers to them, so the
/// state is not movable. Used by one thread at a time. The constructor throws Error(spec) if
/// nothing is left to train or a rule of the recipe matches no parameter.
struct TrainState {
  /// `its_adapters` are on the model already; `of_objective`: from Objective::join().
  TrainState(model::Model trained,
             const OptimizerRecipe& recipe,
             std::vector<model::WeightAdapter> its_adapters = {},
             AuxiliaryParameters of_objective = {})
      : model(std::move(trained)),
        adapters(std::move(its_adapters)),
        auxiliary(std::move(of_objective)),
        parameters(model, recipe, adapters, auxiliary),
        optimizer(make_optimizer(recipe, parameters)) {}
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;

  model::Model model;
  std::vector<model::WeightAdapter> adapters;  // all trained parameters of the model, if any
  AuxiliaryParameters auxiliary;               // trained with the model, not part of it
  ParameterSet parameters;
  std::unique_ptr<Optimizer> optimizer;
  format::StringMap origin = {};  // metadata of the initial model (convert/checkpoint.h)
};

/// The state after adding or removing experts: copies start with the optimizer moments of their
/// originals. Unchanged parts are shared with `before`, which must not be used again.
std::unique_ptr<TrainState> with_experts(const TrainState& before,
                                         const OptimizerRecipe& recipe,
                                         const convert::ExpertChange& change);

}  // namespace tessera::train
