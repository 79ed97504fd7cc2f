#include "tessera/ops/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <mutex>

#include "tessera/base/allocator.h"
#include "tessera/base/error.h"
#include "tessera/ops/block_cache.h"

namespace tessera::ops {
namespace {

/// The allocator that gave the memory, and its deleter: a deleter of one word cannot carry them.
c10::Allocator* inner = nullptr;

int64_t size_of(void* memory) {
  const size_t asked = asked_of_block_cache(memory);
  return static_cast<int64_t>(asked > 0 ? asked : malloc_usable_size(memory));
}

void give_back(void* memory) {
  memory_meter().remove(size_of(memory));
  inner->raw_deleter()(memory);
}

/// Hands out the memory of `inner` as it is, with a deleter that counts before it calls inner's.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner->allocate(bytes);
    if (data.get() == nullptr) return data;
    require(data.compare_exchange_deleter(inner->raw_deleter(), &give_back), "memory",
            "libtorch's allocator gave memory with a deleter of its own");
    memory_meter().add(size_of(data.get()));
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void count_tensor_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    inner = c10::GetCPUAllocator();
    require(inner->raw_deleter() != nullptr, "memory", "libtorch's allocator has no raw deleter");
    // libtorch keeps it for ever, as storages keep its deleter; above use_block_cache's priority
    c10::SetCPUAllocator(new CountingAllocator, 2);
  });
}

}  // namespace tessera::ops
