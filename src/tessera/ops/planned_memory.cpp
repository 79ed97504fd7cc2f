#include "tessera/ops/planned_memory.h"

#include <algorithm>
#include <atomic>

#include <c10/core/Allocator.h>

#include "tessera/base/error.h"
#include "tessera/ops/planned_operators.h"

namespace tessera::ops {
namespace {

std::atomic<at::DeviceType> g_stands_for{at::kMeta};

/// Never destroyed: tensors may outlive a plan.
class Counter final : public c10::Allocator {
 public:
  static Counter& instance() {
    static auto* const counter = [] {
      auto* made = new Counter;
      // above libtorch's own, which counts nothing
      c10::SetAllocator(at::kMeta, made, /*priority=*/1);
      return made;
    }();
    return *counter;
  }
  c10::DataPtr allocate(size_t n) override {
    const int64_t size = PlannedMemory::block(static_cast<int64_t>(n));
    const int64_t now = live_ += size;
    for (int64_t peak = peak_; now > peak && !peak_.compare_exchange_weak(peak, now);) {
    }
    // an address that is not null, as code may ask, and that nothing can read
    void* const nowhere = reinterpret_cast<void*>(uintptr_t{4096});
    return {n == 0 ? nullptr : nowhere, new int64_t(size), &release, at::Device(at::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

  std::atomic<int64_t> live_{0}, peak_{0};

 private:
  static void release(void* size) {
    instance().live_ -= *static_cast<int64_t*>(size);
    delete static_cast<int64_t*>(size);
  }
};

}  // namespace

PlannedMemory::PlannedMemory(at::DeviceType of) {
  Counter::instance();
  add_planned_operators();
  require(g_stands_for == at::kMeta, "plan", "two plans of memory at a time");
  g_stands_for = of;
  reset_peak();
}
PlannedMemory::~PlannedMemory() {
  g_stands_for = at::kMeta;
}

int64_t PlannedMemory::bytes() const {
  return Counter::instance().live_;
}
int64_t PlannedMemory::peak() const {
  return Counter::instance().peak_;
}
void PlannedMemory::reset_peak() {
  Counter::instance().peak_ = Counter::instance().live_.load();
}

at::DeviceType planned_device() {
  return g_stands_for;
}

}  // namespace tessera::ops
