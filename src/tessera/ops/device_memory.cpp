#include "tessera/ops/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "tessera/ops/form.h"

namespace tessera::ops {
namespace {

using Statistics = c10::CachingAllocator::StatType;

/// nullptr for the CPU, and for a backend whose allocator has no statistics.
c10::DeviceAllocator* allocator_of(at::Device device) {
  if (on_host(device)) return nullptr;
  auto* const found = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return found != nullptr && found->initialized() ? found : nullptr;
}

/// A template, because older versions of libtorch have no getMemoryInfo().
template <class Allocator>
std::optional<DeviceMemory> info_of(Allocator& allocator, c10::DeviceIndex index) {
  if constexpr (requires { allocator.getMemoryInfo(index); }) {
    try {
      const auto [free, total] = allocator.getMemoryInfo(index);
      return DeviceMemory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
    } catch (const c10::NotImplementedError&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<DeviceMemory> memory_of(at::Device device) {
  if (on_host(device)) return std::nullopt;
  // a backend may make its allocator with the first tensor
  at::empty({1}, at::TensorOptions(device));
  c10::DeviceAllocator* const allocator = allocator_of(device);
  return allocator == nullptr ? std::nullopt : info_of(*allocator, device.index());
}

std::optional<int64_t> peak_memory(at::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  return allocator->getDeviceStats(device.index())
      .reserved_bytes[static_cast<size_t>(Statistics::AGGREGATE)]
      .peak;
}

void reset_peak_memory(at::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return;
  allocator->emptyCache();
  allocator->resetPeakStats(device.index());
}

}  // namespace tessera::ops
