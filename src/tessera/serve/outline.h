// A model's architecture as the page draws it: stacks, layers and their branches with shapes,
// parameters and costs; what repeats is said once. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera::serve {

using spec::Json;

/// {"arch", "d_model", "vocab", "context", "kv_type",
///  "plan": model::Plan at the longest sequence,
///  "by_kind", "by_place": [{"name", "parameters"}, ...], the most first; each sums up to the
///  plan's, "stacks": [{"name", "nodes": [node, ...]}, ...], from the first part to the last,
///  "mixers": [{"name": "layers.3.mixer", "type"}, ...], of the stack that reads the text,
///  "contexts": [{"tokens", "state_bytes", "flops_per_token"}, ...]}
///
/// A node is a part, {"kind": "embed" | "norm" | "head", "name", "type", "parameters", "tensors",
/// "config"}; a run of equal layers, {"kind": "layers", "times", "first", "last", "groups":
/// [{"aside", "branches": [...]}, ...]}; or nodes that come again, {"kind": "cycle", "times",
/// "first", "last", "nodes"}. A branch has besides what a part has "slot", "norms", "reads",
/// "share", "flops" and "state_bytes"; of those that share parameters each shows them all, and sums
/// count them once. `longest`: tokens that the plan is made for.
Json outline(const model::ModelSpec& spec, int64_t longest, spec::KvType kv = spec::KvType::f32);

}  // namespace tessera::serve
