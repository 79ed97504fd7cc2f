// What a model takes on a device, without that device: weights as they lie there, the state of its
// sequences, and what a call holds at most. Calls are made on libtorch's meta device
// (ops/planned_memory.h), in the code that computes on a GPU.
#pragma once

#include <functional>
#include <string>

#include <c10/core/DeviceType.h>

#include "tessera/model/model.h"
#include "tessera/spec/kv_type.h"

namespace tessera::model {

/// Bytes on a device, by what holds them.
struct MemoryPlan {
  int64_t weights = 0;    // of all models
  int64_t gradients = 0;  // of trained parameters
  int64_t optimizer = 0;  // moments
  int64_t average = 0;    // of the weights
  int64_t state = 0;      // KV cache and recurrent states
  /// What a call or a step holds at most in addition: activations, and temporaries of the update.
  int64_t activations = 0;
  std::string unknown = {};  // why activations are not known; "" = they are

  int64_t total() const { return weights + gradients + optimizer + average + state + activations; }
};

/// A model of the spec on the meta device: float32 parameters, trainable, without numbers.
Model planned_model(const ModelSpec& spec);

struct PlannedCalls {
  int64_t context = 0;    // tokens of a sequence; of a source too
  int64_t sequences = 1;  // that have a state at a time
  int64_t chunk = 1024;   // prompt tokens per call
  spec::KvType kv = spec::KvType::f32;
};
/// Inference: one sequence is read up to the context, in addition to the states of all. `of`: whose
/// forms of attention compute (ops::PlannedMemory). Throws Error(spec) for a KV cache type that the
/// model does not support.
MemoryPlan inference_memory(const Model& model, const PlannedCalls& calls, at::DeviceType of);

/// Fills in what `run` finds; what libtorch or the program cannot compute without numbers becomes
/// plan.unknown.
void plan_calls(MemoryPlan& plan, const std::function<void()>& run);

}  // namespace tessera::model
