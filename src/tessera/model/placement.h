// The device of a model: the one that its weights are on.
#pragma once

#include "tessera/model/model.h"

namespace tessera::model {

/// The device of the weights. Model moves the ids and features of a batch there, its results are
/// there, and a state that it continues must be there (State(.., TensorOptions(device_of(model)))).
at::Device device_of(const Weights& weights);
inline at::Device device_of(const Model& model) {
  return device_of(model.weights());
}

/// Bytes of the weights on another device than the CPU, where every storage type stays what it is
/// (ops::Storage::to). Weights that share their numbers count once.
int64_t bytes_on_device(const Model& model);
/// The same with all matrices in blocks of `packed` whose shape allows it.
int64_t bytes_on_device(const Model& model, DType packed);

/// The same model with its weights on `device`: a copy of each (ops::to_device), or the same
/// weights if they are there. Weights that share their numbers still do.
Model to_device(const Model& model, at::Device device);

}  // namespace tessera::model
