#include "tessera/train/optimizer.h"

#include "tessera/train/adamw.h"

namespace tessera::train {
namespace {

std::vector<AdamW::Slot> slots_of(const ParameterSet& parameters) {
  std::vector<AdamW::Slot> slots;
  for (const ParameterSet::Entry& entry : parameters.trained()) {
    const ParameterGroup& group = parameters.group_of(entry);
    slots.push_back({entry.decl.elements(), group.weight_decay, group.lr_factor});
  }
  return slots;
}

class AdamWOptimizer final : public Optimizer {
 public:
  AdamWOptimizer(const OptimizerRecipe& recipe, const ParameterSet& parameters)
      : parameters_(parameters),
        adamw_(slots_of(parameters), {recipe.betas[0], recipe.betas[1], recipe.eps}) {}

  std::vector<StateTensor> state() override {
    std::vector<StateTensor> out;
    for (size_t i = 0; i < parameters_.trained().size(); ++i) {
      const spec::ParamDecl& decl = parameters_.trained()[i].decl;
      const auto add = [&](const char* what, std::span<float> values) {
        out.push_back(
            {what + decl.name, decl.name, at::from_blob(values.data(), decl.shape, at::kFloat)});
      };
      add("first_moment.", adamw_.first_moment(i));
      add("second_moment.", adamw_.second_moment(i));
    }
    return out;
  }

 private:
  void step(double lr, double scale) override {
    std::vector<Parameter> memory;
    const std::vector<Gradient> gradients = parameters_.gradients();
    for (size_t i = 0; i < gradients.size(); ++i)
      memory.push_back({static_cast<float*>(parameters_.trained()[i].tensor.mutable_data_ptr()),
                        gradients[i].data});
    adamw_.update(memory, updates(), lr, scale);
  }

  const ParameterSet& parameters_;
  AdamW adamw_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe,
                                          const ParameterSet& parameters) {
  switch (recipe.type) {
    case OptimizerType::adamw:
      return std::make_unique<AdamWOptimizer>(recipe, parameters);
  }
  fail(ErrorKind::internal, "optimizer", "unknown type");
}

}  // namespace tessera::train
