#include "tessera/model/memory_plan.h"

#include <algorithm>

#include "tessera/model/placement.h"
#include "tessera/model/plan.h"
#include "tessera/model/state.h"
#include "tessera/ops/planned_memory.h"

namespace tessera::model {
namespace {

/// One row of `length` tokens after `start`.
nn::Batch tokens(int64_t length, int64_t start) {
  return nn::Batch::of({std::vector<int64_t>(static_cast<size_t>(length), 0)}, {start});
}

/// Reads a sequence of `calls.context` tokens in chunks, if its state allows it.
void read_sequence(const Model& model, const PlannedCalls& calls, State* state) {
  const ModelSpec& spec = model.spec();
  ForwardOptions options;
  options.state = state;
  nn::Encoded encoded;
  if (spec.encoder) {
    encoded = model.encode(tokens(calls.context, 0));
    options.encoded = &encoded;
  }
  const int64_t chunk = state == nullptr ? calls.context : calls.chunk;
  for (int64_t begin = 0; begin < calls.context; begin += chunk) {
    const int64_t n = std::min(chunk, calls.context - begin);
    const Tensor hidden = model.hidden(tokens(n, begin), options);
    if (model.has_head()) model.logits(hidden.narrow(0, hidden.size(0) - 1, 1));
  }
}

}  // namespace

Model planned_model(const ModelSpec& spec) {
  std::map<std::string, WeightPtr> weights;
  for (const spec::ParamDecl& decl : parameters(spec))
    weights[decl.name] = std::make_shared<const ops::Weight>(ops::Weight::dense(
        decl.name,
        at::empty(decl.shape, at::TensorOptions(at::kMeta).dtype(at::kFloat)).requires_grad_()));
  return {spec, Weights::check(spec, std::move(weights))};
}

void plan_calls(MemoryPlan& plan, const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::cancelled) throw;
    plan.unknown = error.what();
  } catch (const c10::Error& error) {
    plan.unknown = error.what_without_backtrace();
  }
  plan.unknown = plan.unknown.substr(0, plan.unknown.find('\n'));
  // libtorch's text goes on about programs in Python
  if (const size_t at = plan.unknown.find(": attempted to run"); at != std::string::npos)
    plan.unknown = plan.unknown.substr(0, at) + " has no form without numbers";
}

MemoryPlan inference_memory(const Model& model, const PlannedCalls& calls, at::DeviceType of) {
  const ModelSpec& spec = model.spec();
  MemoryPlan plan{.weights = bytes_on_device(model)};
  const bool has_state = spec.no_state_reason().empty();
  if (has_state)
    plan.state =
        calls.sequences *
        make_plan(spec, calls.context, spec.encoder ? calls.context : -1, calls.kv).state_bytes;
  plan_calls(plan, [&] {
    const at::NoGradGuard no_graph;
    const ops::PlannedMemory memory(of);
    const int64_t before = memory.bytes();
    const Model there = to_device(model, at::kMeta);
    // a model that was on the meta device before has the same tensors
    const int64_t weights = memory.bytes() - before;
    std::optional<State> state;
    if (has_state)
      state.emplace(spec, 1, 0, at::TensorOptions(at::kMeta).dtype(at::kFloat),
                    spec::KvOptions{.type = calls.kv});
    read_sequence(there, calls, state ? &*state : nullptr);
    // pages of the state that its last page leaves unused are counted here
    const int64_t own = state ? state->bytes() : 0;
    plan.activations = std::max<int64_t>(0, memory.peak() - before - weights - own);
  });
  return plan;
}

}  // namespace tessera::model
