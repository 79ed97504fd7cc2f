// For tests of loops with few items.
#pragma once

#include <atomic>

namespace tessera {

/// During its lifetime, every loop of threads.h has grain 1, so that small inputs are split as
/// large ones are.
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
