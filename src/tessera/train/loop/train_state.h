// What a run changes: a model, which of its parameters are trained, and what trains them.
#pragma once

#include "tessera/convert/experts.h"
#include "tessera/train/optimizer/optimizer.h"

namespace tessera::train {

struct TrainState {
  /// `its_adapters` stand on the model already; `of_objective`: Objective::join().
  TrainState(model::Model trained,
             const OptimizerRecipe& recipe,
             std::vector<model::WeightAdapter> its_adapters = {},
             AuxiliaryParameters of_objective = {})
      : model(std::move(trained)),
        adapters(std::move(its_adapters)),
        beside(std::move(of_objective)),
        parameters(model, recipe, adapters, beside),
        optimizer(make_optimizer(recipe, parameters)) {}
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;

  model::Model model;
  std::vector<model::WeightAdapter> adapters;  // all that is trained of it, where there are some
  AuxiliaryParameters beside;                  // trained with it, and no part of it
  ParameterSet parameters;
  std::unique_ptr<Optimizer> optimizer;
  format::StringMap origin = {};  // of the model that the run began from (convert/checkpoint.h)
};

/// The same with other experts: copies begin with the moments of their originals, and what does not
/// change is shared with `before`, which is not used again.
std::unique_ptr<TrainState> with_experts(const TrainState& before,
                                         const OptimizerRecipe& recipe,
                                         const convert::ExpertChange& change);

}  // namespace tessera::train
