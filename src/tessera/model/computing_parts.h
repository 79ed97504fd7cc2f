// The parts of a stack that compute something, residuals and norms included. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// for_each_part() of model_spec.h, and residuals and norms.
void for_each_computing_part(const ModelSpec& spec,
                             const std::function<void(const AnyPart&)>& visit);

}  // namespace tessera::model
