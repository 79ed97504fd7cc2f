#include "tessera/ops/device_name.h"

#include <dlfcn.h>

#include <charconv>
#include <climits>
#include <filesystem>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/ops/cuda_kernels.h"
#include "tessera/ops/deterministic.h"
#include "tessera/ops/device_memory.h"

namespace tessera::ops {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCudaLibrary = "libtorch_cuda.so";

/// Where libtorch's CUDA library may be: next to the libtorch of this process (a torch package that
/// has it), in the folder of scripts/setup.sh cuda, and where the loader looks ("").
std::vector<fs::path> cuda_folders() {
  std::vector<fs::path> out;
  char folder[PATH_MAX] = {};
  void* const loaded = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (loaded != nullptr && dlinfo(loaded, RTLD_DI_ORIGIN, folder) == 0) {
    std::error_code ignored;
    const fs::path here = fs::weakly_canonical(folder, ignored);
    // CACHE/libtorch/torch/lib and CACHE/libtorch-cuda/torch/lib
    out = {here, here.parent_path().parent_path().parent_path() / "libtorch-cuda/torch/lib"};
  }
  out.emplace_back();
  return out;
}

int64_t count_of(at::DeviceType type) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].load();
  return guard == nullptr ? 0 : guard->deviceCount();
}

}  // namespace

std::string no_cuda_reason() {
  // registers CUDA's kernels with the libtorch of this process
  static const std::string missing = [] {
    if (at::hasCUDA()) return std::string();
    std::string error;
    for (const fs::path& folder : cuda_folders()) {
      const fs::path file = folder / kCudaLibrary;
      if (!folder.empty() && !fs::exists(file)) continue;
      if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return std::string();
      const char* text = dlerror();
      error = text != nullptr ? text : "no reason is known";
      if (!folder.empty()) break;  // one that is there and cannot be opened
    }
    return fmt::format(
        "{} cannot be opened ({}); expected it and its NVIDIA libraries (scripts/setup.sh cuda), "
        "or device cpu",
        kCudaLibrary, error);
  }();
  if (!missing.empty()) return missing;
  if (count_of(at::kCUDA) > 0) return "";
  return dlopen("libcuda.so.1", RTLD_LAZY) == nullptr
             ? "no GPU: libcuda.so.1 of the NVIDIA driver is missing; expected a GPU with its "
               "driver (nvidia-smi), or device cpu"
             : "no GPU that the NVIDIA driver shows; expected one (nvidia-smi), or device cpu";
}

AutoDevice auto_device(int64_t bytes) {
  constexpr double kGiB = 1 << 30;
  const bool own = c10::is_privateuse1_backend_registered() && count_of(at::kPrivateUse1) > 0;
  if (!own)
    if (const std::string reason = no_cuda_reason(); !reason.empty())
      return {at::kCPU, "cpu, since cuda is not available: " + reason};
  const at::Device device(own ? at::kPrivateUse1 : at::kCUDA, 0);
  const std::string name = device.str();
  const std::optional<DeviceMemory> memory = memory_of(device);
  if (!memory) return {at::kCPU, fmt::format("cpu, since {} does not report its memory", name)};
  const bool fits = bytes <= usable_memory(memory->free);
  return {fits ? device : at::Device(at::kCPU),
          fmt::format("{}, since the model takes {:.2f} GiB there and {} has {:.2f} GiB free",
                      fits ? name : "cpu", static_cast<double>(bytes) / kGiB, name,
                      static_cast<double>(memory->free) / kGiB)};
}

std::vector<std::string> devices() {
  std::vector<std::string> names{"cpu"};
  if (no_cuda_reason().empty())
    for (int64_t i = 0; i < count_of(at::kCUDA); ++i) names.push_back(fmt::format("cuda:{}", i));
  return names;
}

at::Device device_named(const std::string& name, const std::string& expected) {
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
    fail(ErrorKind::usage, "device", "\"{}\"; expected {}", name, expected);
  if (kind == "cpu") return at::kCPU;
  if (kind == "cuda")
    if (const std::string reason = no_cuda_reason(); !reason.empty())
      fail(ErrorKind::usage, "device", "{}: {}", name, reason);
  const at::DeviceType type = own ? at::kPrivateUse1 : at::kCUDA;
  if (index >= count_of(type))
    fail(ErrorKind::usage, "device", "{}: there are {} devices; expected {}:0 to {}:{}", name,
         count_of(type), kind, kind, count_of(type) - 1);
  const at::Device device(type, static_cast<c10::DeviceIndex>(index));
  if (device.is_cuda()) open_cuda_kernels(device.index());
  compute_without_tf32();
  return device;
}

}  // namespace tessera::ops
