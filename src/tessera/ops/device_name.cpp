#include "tessera/ops/device_name.h"

#include <dlfcn.h>

#include <charconv>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace tessera::ops {
namespace {

constexpr const char* kCudaLibrary = "libtorch_cuda.so";

int64_t count_of(at::DeviceType type) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].load();
  return guard == nullptr ? 0 : guard->deviceCount();
}

}  // namespace

std::string no_cuda_reason() {
  // registers CUDA's kernels with the libtorch of this process
  static const std::string missing = [] {
    if (at::hasCUDA() || dlopen(kCudaLibrary, RTLD_NOW | RTLD_GLOBAL) != nullptr)
      return std::string();
    const char* error = dlerror();
    return fmt::format(
        "{} cannot be opened ({}); expected a build with TESSERA_TORCH = a torch "
        "package that has it and its NVIDIA libraries, or device cpu",
        kCudaLibrary, error != nullptr ? error : "no reason is known");
  }();
  if (!missing.empty()) return missing;
  return count_of(at::kCUDA) > 0
             ? ""
             : "there is no GPU that its driver shows; expected a GPU (nvidia-smi), or device cpu";
}

std::vector<std::string> devices() {
  std::vector<std::string> names{"cpu"};
  if (no_cuda_reason().empty())
    for (int64_t i = 0; i < count_of(at::kCUDA); ++i) names.push_back(fmt::format("cuda:{}", i));
  return names;
}

at::Device device_named(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  int index = 0;
  if (colon != std::string::npos) {
    const char *begin = name.data() + colon + 1, *end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(begin, end, index);
    if (error != std::errc() || stop != end || index < 0 || index > 127) index = -1;
  }
  const bool own =
      c10::is_privateuse1_backend_registered() && kind == c10::get_privateuse1_backend();
  if (index < 0 || (kind == "cpu" && colon != std::string::npos) ||
      (kind != "cpu" && kind != "cuda" && !own))
    fail(ErrorKind::usage, "device", "\"{}\"; expected cpu, cuda or cuda:N", name);
  if (kind == "cpu") return at::kCPU;
  if (kind == "cuda")
    if (const std::string reason = no_cuda_reason(); !reason.empty())
      fail(ErrorKind::usage, "device", "{}: {}", name, reason);
  const at::DeviceType type = own ? at::kPrivateUse1 : at::kCUDA;
  if (index >= count_of(type))
    fail(ErrorKind::usage, "device", "{}: there are {} devices; expected {}:0 to {}:{}", name,
         count_of(type), kind, kind, count_of(type) - 1);
  return {type, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace tessera::ops
