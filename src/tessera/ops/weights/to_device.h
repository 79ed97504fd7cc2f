// Weights on another device.
#pragma once

#include "tessera/ops/weights/weight.h"

namespace tessera::ops {

/// The same numbers on `device`; `w` itself if it is there. A dense weight keeps its type, and is
/// trainable where `w` is, with a gradient of its own. Stored f64, f32, f16 and bf16 keep their
/// type, other storage types are decoded to float32. Each part of an adapted weight is copied.
WeightPtr to_device(const WeightPtr& w, at::Device device);

}  // namespace tessera::ops
