#include "tessera/train/loop/train_state.h"

#include <cstring>

namespace tessera::train {
namespace {

/// Of a tensor on the host.
format::TensorView view_of(const std::string& parameter, const Tensor& tensor) {
  require(tensor.scalar_type() == at::kFloat && tensor.is_contiguous(), "experts",
          "{} is not of float32", parameter);
  return {parameter,
          DType::f32,
          tensor.sizes().vec(),
          {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()},
          {}};
}

}  // namespace

std::unique_ptr<TrainState> with_experts(const TrainState& before,
                                         const OptimizerRecipe& recipe,
                                         const convert::ExpertChange& change) {
  model::ModelSpec spec =
      model::read_model_spec(convert::with_experts(before.model.spec(), change));
  std::map<std::string, model::WeightPtr> weights;
  for (const auto& [decl, weight] : before.model.weights().all()) {
    const Tensor before_here = weight->dense_tensor().detach().cpu();
    const format::TensorView old = view_of(decl.name, before_here),
                             now = convert::with_experts(old, change);
    if (now.data.data() == old.data.data()) {
      weights[decl.name] = weight;
      continue;
    }
    Tensor tensor = at::empty(now.shape, at::kFloat);
    std::memcpy(tensor.mutable_data_ptr(), now.data.data(), now.data.size());
    weights[decl.name] = std::make_shared<const ops::Weight>(
        ops::Weight::dense(decl.name, tensor.to(weight->device())));
  }
  auto checked = model::Weights::check(spec, std::move(weights));
  auto after =
      std::make_unique<TrainState>(model::Model(std::move(spec), std::move(checked)), recipe,
                                   std::vector<model::WeightAdapter>(), before.auxiliary);

  convert::ExpertChange moves = change;
  moves.noise = 0;
  std::map<std::string, Tensor> states;
  for (const Optimizer::StateTensor& state : before.optimizer->state())
    states[state.name] = state.tensor;
  for (const Optimizer::StateTensor& state : after->optimizer->state()) {
    if (state.parameter.empty()) {
      Tensor(state.tensor).copy_(states.at(state.name));
      continue;
    }
    const Tensor before_here = states.at(state.name).cpu();
    const format::TensorView now =
        convert::with_experts(view_of(state.parameter, before_here), moves);
    require(now.shape == state.tensor.sizes().vec(), "experts", "{} came out as {}", state.name,
            format::shape_text(now.shape));
    Tensor here = state.tensor.is_cpu() ? state.tensor : at::empty(now.shape, at::kFloat);
    std::memcpy(here.mutable_data_ptr(), now.data.data(), now.data.size());
    if (!state.tensor.is_cpu()) Tensor(state.tensor).copy_(here);
  }
  after->optimizer->restore_updates(before.optimizer->updates());
  after->origin = before.origin;
  return after;
}

}  // namespace tessera::train
