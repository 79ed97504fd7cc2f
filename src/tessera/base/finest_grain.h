// For tests of loops over few numbers.
#pragma once

#include <atomic>

namespace tessera {

/// While one lives, every loop of threads.h takes its grain as 1, so that inputs of a few numbers
/// are cut as long ones are.
class FinestGrain {
 public:
  FinestGrain() { ++living_; }
  ~FinestGrain() { --living_; }
  FinestGrain(const FinestGrain&) = delete;
  FinestGrain& operator=(const FinestGrain&) = delete;
  static bool active() { return living_.load(std::memory_order_relaxed) > 0; }

 private:
  inline static std::atomic<int> living_{0};
};

}  // namespace tessera
