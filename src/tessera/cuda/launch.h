// Launching CUDA kernels (kernels.h): through the driver, or through what a test puts in its place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

/// The kernels, in the order of kernels.def.
enum class Kernel : uint16_t {
#define TESSERA_CUDA_KERNEL(name, ...) name,
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
};
constexpr const char* kKernelNames[] = {
#define TESSERA_CUDA_KERNEL(name, ...) #name,
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
};
constexpr const char* name_of(Kernel kernel) {
  return kKernelNames[static_cast<size_t>(kernel)];
}

/// The kernel of a struct.
template <class Struct>
struct KernelOf;

/// Blocks. y and z are at most 65,535.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

/// A queue of a device: launches and copies in it run in order.
struct Stream {
  int device = 0;          // as CUDA counts
  void* handle = nullptr;  // CUstream; null = the default stream
};

/// What runs kernels. Threads may launch at the same time.
class Launcher {
 public:
  virtual ~Launcher() = default;
  /// Starts the kernel on arguments of its struct, which are copied. Does not wait for it. Throws
  /// Error(resource) if it cannot start.
  virtual void launch(Kernel kernel,
                      const Grid& grid,
                      int threads,
                      const void* arguments,
                      const Stream& stream) = 0;
};

/// The driver (driver.h), unless a test has set another one (null = the driver again).
Launcher& launcher();
void set_launcher(Launcher* launcher);

/// Starts a kernel. Without blocks does nothing.
template <class Struct>
void launch(const Grid& grid, const typename Struct::Arguments& arguments, const Stream& stream) {
  if (grid.x > 0 && grid.y > 0 && grid.z > 0)
    launcher().launch(KernelOf<Struct>::kernel, grid, Struct::kThreads, &arguments, stream);
}

}  // namespace tessera::cuda
