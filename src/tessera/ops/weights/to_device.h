// Weights on another device.
#pragma once

#include "tessera/ops/weights/weight.h"

namespace tessera::ops {

/// The same numbers on `device` (Storage::to); `w` itself if it is there. Each part of an adapted
/// weight is copied.
WeightPtr to_device(const WeightPtr& w, at::Device device);

}  // namespace tessera::ops
