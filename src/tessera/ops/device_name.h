// Devices by name, and what of CUDA is installed.
#pragma once

#include <string>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// The device of a name: "cpu", "cuda" (= "cuda:0"), "cuda:1", or a backend that the program has
/// registered with libtorch. Opens libtorch's CUDA libraries for "cuda". Throws Error(usage) for
/// another name, and if the device is missing, with what is missing and the remedy.
at::Device device_named(const std::string& name);

/// Why "cuda" is not available, with the remedy; "" if it is.
std::string no_cuda_reason();

/// The devices of this machine: "cpu", "cuda:0", ...
std::vector<std::string> devices();

}  // namespace tessera::ops
