// A library with the functions of NVIDIA's driver that cuda/driver.h opens, for machines without
// one: one device, "0", whose kernels are emulated in this machine's memory. Calls in a wrong
// order, or without the context, are errors.
#include <cstring>

#include "tessera/cuda/emulation_testing.h"

namespace {

using tessera::cuda::Kernel;

constexpr int kOk = 0, kInvalidValue = 1, kNoContext = 201, kNotFound = 500;
int context_of_device, module_of_device;  // their addresses are handles
thread_local void* current = nullptr;
bool ready = false;

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  ready = flags == 0;
  return ready ? kOk : kInvalidValue;
}
int cuDeviceGet(int* device, int ordinal) {
  if (!ready || ordinal != 0) return 101;  // CUDA_ERROR_INVALID_DEVICE
  *device = 7;
  return kOk;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (device != 7) return kInvalidValue;
  *context = &context_of_device;
  return kOk;
}
int cuCtxPushCurrent_v2(void* context) {
  if (context != &context_of_device || current != nullptr) return kInvalidValue;
  current = context;
  return kOk;
}
int cuCtxPopCurrent_v2(void** context) {
  if (current == nullptr) return kNoContext;
  *context = current;
  current = nullptr;
  return kOk;
}
int cuModuleLoadData(void** module, const void* image) {
  // the magic number of a fatbin
  constexpr unsigned char kFatbin[] = {0x50, 0xed, 0x55, 0xba};
  if (current == nullptr) return kNoContext;
  if (std::memcmp(image, kFatbin, sizeof kFatbin) != 0) return 200;  // CUDA_ERROR_INVALID_IMAGE
  *module = &module_of_device;
  return kOk;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &module_of_device) return kInvalidValue;
  size_t i = 0;
  for (const char* known : tessera::cuda::kKernelNames) {
    ++i;
    if (std::strcmp(known, name) != 0) continue;
    *function = reinterpret_cast<void*>(i);
    return kOk;
  }
  return kNotFound;
}
int cuLaunchKernel(void* function,
                   unsigned grid_x,
                   unsigned grid_y,
                   unsigned grid_z,
                   unsigned block_x,
                   unsigned block_y,
                   unsigned block_z,
                   unsigned shared_bytes,
                   void*,
                   void** arguments,
                   void** extra) {
  if (current == nullptr) return kNoContext;
  if (block_x > 1024 || block_y != 1 || block_z != 1 || shared_bytes != 0 || extra != nullptr)
    return kInvalidValue;
  switch (static_cast<Kernel>(reinterpret_cast<size_t>(function) - 1)) {
#define TESSERA_CUDA_KERNEL(name, Struct)                                    \
  case Kernel::name:                                                         \
    if (block_x != tessera::cuda::Struct::kThreads) return kInvalidValue;    \
    tessera::cuda::emulate<tessera::cuda::Struct>(                           \
        {grid_x, grid_y, grid_z},                                            \
        *static_cast<const tessera::cuda::Struct::Arguments*>(arguments[0]), \
        tessera::cuda::Order::forwards);                                     \
    return kOk;
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
  }
  return kNotFound;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == 101 ? "invalid device ordinal" : "an error of the stub";
  return kOk;
}

}  // extern "C"
