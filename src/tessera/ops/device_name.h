// Devices by name, and what of CUDA is installed.
#pragma once

#include <string>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// The device of a name: "cpu", "cuda" (= "cuda:0"), "cuda:1", or a backend that the program has
/// registered with libtorch. Opens libtorch's CUDA libraries for "cuda". Throws Error(usage) for
/// another name, "auto" too, and if the device is missing, with what is missing and the remedy.
/// `expected`: the names that the caller takes, for messages.
at::Device device_named(const std::string& name,
                        const std::string& expected = "cpu, cuda or cuda:N");

/// Why "cuda" is not available, with the remedy; "" if it is.
std::string no_cuda_reason();

/// "auto": a GPU if there is one whose free memory has `bytes`, with a fifth to spare for states
/// and activations; else the CPU. A backend that the program has registered counts as a
/// GPU.
struct AutoDevice {
  at::Device device;
  std::string reason;  // one line, without a full stop
};
AutoDevice auto_device(int64_t bytes);

/// The devices of this machine: "cpu", "cuda:0", ...
std::vector<std::string> devices();

}  // namespace tessera::ops
