// CUDA kernels through NVIDIA's driver library (libcuda.so.1), which is opened when it is needed:
// nothing links to CUDA. https://docs.nvidia.com/cuda/cuda-driver-api
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tessera/cuda/launch.h"

namespace tessera::cuda {

/// The compiled kernels of this build (a fatbin); empty if it was built without nvcc.
std::span<const unsigned char> compiled_kernels();
/// What they are compiled for, "sm_80, sm_90, compute_80"; "" without.
const char* compiled_targets();

class Driver final : public Launcher {
 public:
  explicit Driver(std::string library = "libcuda.so.1") : library_(std::move(library)) {}

  /// Loads the kernels on a device, in the context that the CUDA runtime has there. Returns "" or
  /// why they cannot be launched, with the remedy.
  std::string open(int device);
  void launch(Kernel kernel,
              const Grid& grid,
              int threads,
              const void* arguments,
              const Stream& stream) override;

 private:
  struct Api;
  struct Device {
    std::string reason;  // why it has no kernels; "" = it has
    void* context = nullptr;
    std::vector<void*> functions;  // in the order of Kernel
  };
  const Device& device_of(int device);
  Device opened(int device);
  std::string text_of(int result) const;

  std::string library_;
  std::mutex mutex_;
  const Api* api_ = nullptr;
  std::map<int, Device> devices_;
};

/// The one of this process.
Driver& driver();

}  // namespace tessera::cuda
