#include "tessera/ops/block_cache.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLarge = size_t{1} << 20;  // smaller ones are malloc's business
constexpr size_t kSmallAlignment = 64;

// Whole huge pages, where one more is no more than a quarter of the block.
size_t block_bytes(size_t n) {
  const size_t unit = n < 4 * kHugePage ? kHugePage / 8 : kHugePage;
  return (n + unit - 1) / unit * unit;
}

void* map_block(size_t bytes) {
  // one huge page more, to cut an aligned block out of it
  void* start =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > address) munmap(start, aligned - address);
  if (const size_t rest = address + kHugePage - aligned; rest > 0)
    munmap(reinterpret_cast<void*>(aligned + bytes), rest);
  madvise(reinterpret_cast<void*>(aligned), bytes,
          MADV_HUGEPAGE);  // a wish: without it the block is only slower
  return reinterpret_cast<void*>(aligned);
}

class BlockCache final : public c10::Allocator {
 public:
  // never destroyed: tensors may outlive everything
  static BlockCache& instance() {
    static auto* cache = new BlockCache;
    return *cache;
  }
  c10::DataPtr allocate(size_t n) override {
    void* data = n >= kLarge ? take(n) : small(n);
    return {data, data, &BlockCache::give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &BlockCache::give_back; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  size_t asked(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(data);
    return found == sizes_.end() ? 0 : found->second.asked;
  }

  BlockCacheStats stats() {
    const std::lock_guard lock(mutex_);
    return {live_bytes_, cached_bytes_};
  }
  void release() {
    const std::lock_guard lock(mutex_);
    trim(0);
    most_ = live_bytes_;
  }

 private:
  static void* small(size_t n) {
    if (n == 0) return nullptr;
    void* data = nullptr;
    if (posix_memalign(&data, kSmallAlignment, n) != 0)
      fail(ErrorKind::resource, "memory", "no {} bytes left", n);
    return data;
  }

  void* take(size_t n) {
    if (n > SIZE_MAX / 2) fail(ErrorKind::resource, "memory", "no {} bytes left", n);
    const size_t bytes = block_bytes(n);
    const std::lock_guard lock(mutex_);
    void* data = nullptr;
    // exact, or at most an eighth too large
    if (const auto found = free_.lower_bound(bytes);
        found != free_.end() && found->first - bytes <= bytes / 8) {
      data = found->second;
      forget_free(found);
    } else {
      data = map_block(bytes);
      if (data == nullptr) {
        trim(0);
        data = map_block(bytes);
      }
      if (data == nullptr) fail(ErrorKind::resource, "memory", "no {} bytes left", n);
      sizes_[data].bytes = bytes;
    }
    Size& size = sizes_[data];
    size.asked = n;
    live_bytes_ += size.bytes;
    most_ = std::max(most_, live_bytes_);
    return data;
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    // only blocks of ours and, rarely, malloc's are aligned so
    if (reinterpret_cast<uintptr_t>(data) % kHugePage == 0 && instance().keep(data)) return;
    std::free(data);
  }

  bool keep(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(data);
    if (found == sizes_.end()) return false;
    const size_t bytes = found->second.bytes;
    live_bytes_ -= bytes;
    cached_bytes_ += bytes;
    found->second.returned = returned_.insert(returned_.end(), free_.emplace(bytes, data));
    trim(most_ + most_ / 2 - live_bytes_);
    return true;
  }

  using Free = std::multimap<size_t, void*>;  // by size

  void forget_free(Free::iterator block) {
    cached_bytes_ -= block->first;
    returned_.erase(sizes_[block->second].returned);
    free_.erase(block);
  }

  // what lay unused for longest first: blocks of an earlier stage must not crowd out those that
  // this one takes and gives back all the time
  void trim(size_t limit) {
    while (cached_bytes_ > limit && !returned_.empty()) {
      const auto [bytes, data] = *returned_.front();
      forget_free(returned_.front());
      munmap(data, bytes);
      sizes_.erase(data);
    }
  }

  struct Size {
    size_t bytes = 0, asked = 0;
    std::list<Free::iterator>::iterator returned = {};  // of a free one
  };

  std::mutex mutex_;
  Free free_;
  std::list<Free::iterator> returned_;     // the free ones, in the order in which they came back
  std::unordered_map<void*, Size> sizes_;  // of all blocks, free or not
  size_t live_bytes_ = 0, cached_bytes_ = 0, most_ = 0;
};

}  // namespace

void use_block_cache() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&BlockCache::instance(), 1); });
}

size_t asked_of_block_cache(void* memory) {
  if (reinterpret_cast<uintptr_t>(memory) % kHugePage != 0) return 0;
  return BlockCache::instance().asked(memory);
}

BlockCacheStats block_cache_stats() {
  return BlockCache::instance().stats();
}

void release_block_cache() {
  BlockCache::instance().release();
}

}  // namespace tessera::ops
