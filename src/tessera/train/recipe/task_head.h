// The head required by a supervised objective, on a spec that may have another one. Torch-free.
#pragma once

#include <string>

#include "tessera/spec/json.h"

namespace tessera::train {

/// `spec` with heads for a supervised `objective`: its own if they fit, with the objective's label
/// names; otherwise, if `replace` is set, those that the objective needs. `note` reports changes;
/// "" = parameters are unchanged. Throws Error(spec) for labels in another order than those of the
/// head.
struct TaskHead {
  spec::Json spec;
  std::string note = {};
};
TaskHead with_task_head(spec::Json spec, const spec::Json& objective, bool replace);

}  // namespace tessera::train
