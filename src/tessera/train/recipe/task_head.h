// The head that an objective with labels needs, on a spec that may have another one. Torch-free.
#pragma once

#include <string>

#include "tessera/spec/json.h"

namespace tessera::train {

/// `spec` with the heads of a labelled `objective`: its own where they fit, named by the
/// objective's labels; else, where `replace` is set, those that the objective asks for. `note` says
/// what changed; "" = no parameter is another. Throws Error(spec) for labels in another order than
/// those of the head.
struct TaskHead {
  spec::Json spec;
  std::string note = {};
};
TaskHead with_task_head(spec::Json spec, const spec::Json& objective, bool replace);

}  // namespace tessera::train
