// How much memory tensors hold, for tests of which activations are kept.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>

namespace tessera::ops {

/// Counts the bytes of CPU tensors that are made while it lives.
class LiveBytes final : c10::Allocator {
 public:
  LiveBytes() : base_(c10::GetCPUAllocator()) {
    now_ = most_ = 0;
    c10::SetCPUAllocator(this, kPriority);
  }
  ~LiveBytes() override { c10::SetCPUAllocator(base_, kPriority); }
  LiveBytes(const LiveBytes&) = delete;
  LiveBytes& operator=(const LiveBytes&) = delete;

  int64_t now() const { return now_; }
  int64_t most() const { return most_; }
  void forget_most() { most_ = now_.load(); }

 private:
  static constexpr uint8_t kPriority = 1;  // that of the block cache, which may come after it
  struct Block {
    c10::DataPtr data;
    int64_t bytes;
  };

  c10::DataPtr allocate(size_t n) override {
    auto* block = new Block{base_->allocate(n), static_cast<int64_t>(n)};
    now_ += block->bytes;
    most_ = std::max(most_.load(), now_.load());
    return {block->data.get(), block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  static void free_block(void* pointer) {
    auto* block = static_cast<Block*>(pointer);
    now_ -= block->bytes;
    delete block;
  }
  void copy_data(void* to, const void* from, size_t n) const override {
    default_copy_data(to, from, n);
  }

  inline static std::atomic<int64_t> now_ = 0, most_ = 0;
  c10::Allocator* base_;
};

}  // namespace tessera::ops
