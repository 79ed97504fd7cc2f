// What a run changes: a model, which of its parameters are trained, and what trains them.
#pragma once

#include <functional>

#include "tessera/convert/experts.h"
#include "tessera/train/optimizer.h"

namespace tessera::train {

struct Learner {
  /// `adapters` stand on the model already.
  Learner(model::Model trained,
          const OptimizerRecipe& recipe,
          std::vector<model::Overlay> its_adapters = {})
      : Learner(std::move(trained), recipe, std::move(its_adapters),
                [](const model::Model&) { return Companion(); }) {}
  /// `join`: makes what is trained beside the model.
  Learner(model::Model trained,
          const OptimizerRecipe& recipe,
          std::vector<model::Overlay> its_adapters,
          const std::function<Companion(const model::Model&)>& join)
      : model(std::move(trained)),
        adapters(std::move(its_adapters)),
        beside(join(model)),
        parameters(model, recipe, adapters, beside),
        optimizer(make_optimizer(recipe, parameters)) {}
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  model::Model model;
  std::vector<model::Overlay> adapters;  // which are all that is trained, where there are some
  Companion beside;
  ParameterSet parameters;
  std::unique_ptr<Optimizer> optimizer;
};

/// The same with other experts: copies begin with the moments of their originals, and what does not
/// change is shared with `before`, which is not used again.
std::unique_ptr<Learner> with_experts(const Learner& before,
                                      const OptimizerRecipe& recipe,
                                      const convert::ExpertChange& change);

}  // namespace tessera::train
