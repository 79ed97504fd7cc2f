// What turns gradients into new values of parameters: acts on the tensors of a ParameterSet, by its
// groups. How one is added: a class here, a line in make_optimizer() and in OptimizerType.
#pragma once

#include <memory>

#include "tessera/train/parameters.h"

namespace tessera::train {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update at rate `lr`, which groups multiply, with the gradients of the set times `scale`
  /// (clipping). A parameter without a gradient stays as it is.
  void update(double lr, double scale) {
    ++updates_;
    step(lr, scale);
  }
  /// Made so far: an update that was left out is none.
  int64_t updates() const { return updates_; }
  void restore_updates(int64_t updates) { updates_ = updates; }

  /// A tensor that the next update depends on, by the name that a checkpoint gives it; float32, it
  /// shares memory with the optimiser.
  struct StateTensor {
    std::string name;
    std::string parameter;  // that it belongs to, and whose shape it has
    Tensor tensor;
  };
  virtual std::vector<StateTensor> state() = 0;

 protected:
  virtual void step(double lr, double scale) = 0;

 private:
  int64_t updates_ = 0;
};

/// `parameters` must outlive it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerRecipe& recipe,
                                          const ParameterSet& parameters);

}  // namespace tessera::train
