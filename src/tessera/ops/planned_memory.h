// The memory that a computation would take on a device, without that device and without its
// numbers: libtorch's meta device has tensors with shapes only. A model that is placed there
// (model::to_device(model, at::kMeta)) makes the tensors that it would make on a GPU, and their
// bytes are counted. Code that needs numbers throws libtorch's error.
#pragma once

#include <cstdint>

#include <c10/core/DeviceType.h>

namespace tessera::ops {

/// While one lives, tensors of the meta device stand for those of another device, and are counted
/// in blocks of 512 bytes, as CUDA's allocator makes them. One at a time, of one thread.
class PlannedMemory {
 public:
  /// `of`: the device whose forms of attention are counted (fused kernels of at::kCUDA).
  explicit PlannedMemory(at::DeviceType of);
  ~PlannedMemory();
  PlannedMemory(const PlannedMemory&) = delete;
  PlannedMemory& operator=(const PlannedMemory&) = delete;

  int64_t bytes() const;  // of tensors now
  int64_t peak() const;   // at most since reset_peak()
  void reset_peak();

  /// Bytes of a tensor's block.
  static int64_t block(int64_t bytes) { return (bytes + 511) / 512 * 512; }
};

/// What meta tensors stand for; at::kMeta without a PlannedMemory.
at::DeviceType planned_device();

}  // namespace tessera::ops
