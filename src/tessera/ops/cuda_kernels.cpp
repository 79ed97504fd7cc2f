#include "tessera/ops/cuda_kernels.h"

#include <cstdlib>
#include <string_view>

#include "tessera/cuda/driver.h"
#include "tessera/ops/form.h"

namespace tessera::ops {

std::string no_cuda_kernels_reason(int device) {
  const char* const choice = std::getenv("TESSERA_CUDA_KERNELS");
  if (choice != nullptr && std::string_view(choice) == "0") return "TESSERA_CUDA_KERNELS is 0";
  return cuda::driver().open(device);
}

void open_cuda_kernels(int device) {
  set_cuda_kernels(no_cuda_kernels_reason(device).empty());
}

}  // namespace tessera::ops
