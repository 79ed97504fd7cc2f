// A model's architecture for diagrams (web UI, notebooks): stacks, layers and their branches with
// shapes, parameters and costs. Repeated layers are folded. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// {"arch", "d_model", "vocab", "context", "kv_type",
///  "plan": Plan at the longest sequence,
///  "by_kind", "by_place": [{"name", "parameters"}, ...], largest first; each sums up to the
///  plan's, "stacks": [{"name", "nodes": [node, ...]}, ...], from the first part to the last,
///  "mixers": [{"name": "layers.3.mixer", "type"}, ...], of the stack that reads the text,
///  "contexts": [{"tokens", "state_bytes", "flops_per_token"}, ...]}
///
/// A node is a part, {"kind": "embed" | "norm" | "head", "name", "type", "parameters", "tensors",
/// "config"}; a run of equal layers, {"kind": "layers", "times", "first", "last", "groups":
/// [{"aside", "branches": [...]}, ...]}; or a repeated list of nodes, {"kind": "cycle", "times",
/// "first", "last", "nodes"}. A branch has the members of a part and "slot", "norms", "reads",
/// "share", "flops" and "state_bytes"; branches that share parameters list them all, and sums
/// count them once. `longest`: sequence length of the plan, tokens.
spec::Json outline(const ModelSpec& spec, int64_t longest, spec::KvType kv = spec::KvType::f32);

}  // namespace tessera::model
