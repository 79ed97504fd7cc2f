#include "tessera/cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>

#include "tessera/base/error.h"

namespace tessera::cuda {

/// The functions of the driver that are used, with its types: CUresult and CUdevice are int;
/// contexts, modules, functions and streams are pointers.
struct Driver::Api {
  int (*cuInit)(unsigned flags);
  int (*cuDeviceGet)(int* device, int ordinal);
  int (*cuDevicePrimaryCtxRetain)(void** context, int device);
  int (*cuCtxPushCurrent_v2)(void* context);
  int (*cuCtxPopCurrent_v2)(void** context);
  int (*cuModuleLoadData)(void** module, const void* image);
  int (*cuModuleGetFunction)(void** function, void* module, const char* name);
  int (*cuLaunchKernel)(void* function,
                        unsigned grid_x,
                        unsigned grid_y,
                        unsigned grid_z,
                        unsigned block_x,
                        unsigned block_y,
                        unsigned block_z,
                        unsigned shared_bytes,
                        void* stream,
                        void** arguments,
                        void** extra);
  int (*cuGetErrorString)(int result, const char** text);

  /// Why the library cannot be used; "" if it can.
  std::string open(const std::string& library) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      const char* error = dlerror();
      return fmt::format("{} cannot be opened ({}); expected an NVIDIA driver", library,
                         error != nullptr ? error : "no reason is known");
    }
    std::string missing;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr) missing = name;
    };
    find(cuInit, "cuInit");
    find(cuDeviceGet, "cuDeviceGet");
    find(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(cuCtxPushCurrent_v2, "cuCtxPushCurrent_v2");
    find(cuCtxPopCurrent_v2, "cuCtxPopCurrent_v2");
    find(cuModuleLoadData, "cuModuleLoadData");
    find(cuModuleGetFunction, "cuModuleGetFunction");
    find(cuLaunchKernel, "cuLaunchKernel");
    find(cuGetErrorString, "cuGetErrorString");
    return missing.empty() ? ""
                           : fmt::format("{} has no function {}; expected a newer NVIDIA driver",
                                         library, missing);
  }
};

std::string Driver::text_of(int result) const {
  const char* text = nullptr;
  if (api_->cuGetErrorString(result, &text) != 0 || text == nullptr) text = "unknown error";
  return fmt::format("{} (error {})", text, result);
}

Driver::Device Driver::opened(int ordinal) {
  Device out;
  if (compiled_kernels().empty()) {
    out.reason =
        "this build has no CUDA kernels; expected nvcc (the CUDA toolkit) when it is built";
    return out;
  }
  if (api_ == nullptr) {
    auto api = std::make_unique<Api>();
    out.reason = api->open(library_);
    if (!out.reason.empty()) return out;
    api_ = api.release();  // as long as the process, as the library is
  }
  const auto failed = [&](int result, const char* what) {
    if (result != 0)
      out.reason = fmt::format(
          "{} on cuda:{}: {}; expected a driver and a GPU for kernels of {} (nvidia-smi)", what,
          ordinal, text_of(result), compiled_targets());
    return result != 0;
  };
  int device = 0;
  void *module = nullptr, *popped = nullptr;
  if (failed(api_->cuInit(0), "cuInit") ||
      failed(api_->cuDeviceGet(&device, ordinal), "cuDeviceGet") ||
      failed(api_->cuDevicePrimaryCtxRetain(&out.context, device), "cuDevicePrimaryCtxRetain") ||
      failed(api_->cuCtxPushCurrent_v2(out.context), "cuCtxPushCurrent"))
    return out;
  if (!failed(api_->cuModuleLoadData(&module, compiled_kernels().data()), "cuModuleLoadData"))
    for (const char* name : kKernelNames) {
      void* function = nullptr;
      if (failed(api_->cuModuleGetFunction(&function, module, name), name)) break;
      out.functions.push_back(function);
    }
  api_->cuCtxPopCurrent_v2(&popped);
  return out;
}

const Driver::Device& Driver::device_of(int device) {
  const std::lock_guard lock(mutex_);
  const auto at = devices_.find(device);
  return at != devices_.end() ? at->second : devices_.emplace(device, opened(device)).first->second;
}

std::string Driver::open(int device) {
  return device_of(device).reason;
}

void Driver::launch(
    Kernel kernel, const Grid& grid, int threads, const void* arguments, const Stream& stream) {
  const Device& device = device_of(stream.device);
  if (!device.reason.empty()) fail(ErrorKind::resource, "cuda", "{}", device.reason);
  void* values[] = {const_cast<void*>(arguments)};
  void* popped = nullptr;
  int result = api_->cuCtxPushCurrent_v2(device.context);
  if (result == 0) {
    result = api_->cuLaunchKernel(device.functions[static_cast<size_t>(kernel)],
                                  static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                                  static_cast<unsigned>(grid.z), static_cast<unsigned>(threads), 1,
                                  1, 0, stream.handle, values, nullptr);
    api_->cuCtxPopCurrent_v2(&popped);
  }
  if (result != 0)
    fail(ErrorKind::resource, "cuda",
         "kernel {} on cuda:{} with {} x {} x {} blocks of {} threads: {}; expected a launch, or "
         "TESSERA_CUDA_KERNELS=0 for the plain forms",
         name_of(kernel), stream.device, grid.x, grid.y, grid.z, threads, text_of(result));
}

Driver& driver() {
  static Driver only;
  return only;
}

namespace {
std::atomic<Launcher*> in_its_place{nullptr};
}  // namespace

Launcher& launcher() {
  Launcher* const other = in_its_place;
  return other != nullptr ? *other : driver();
}

void set_launcher(Launcher* launcher) {
  in_its_place = launcher;
}

}  // namespace tessera::cuda
