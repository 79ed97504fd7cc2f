// For the contract suite's test of itself.
#pragma once

#include <atomic>

namespace tessera::nn {

/// While one lives, rows of a state (state.h) lose what calls write into them and hold zeros, or
/// what fixed tensors start as.
class ForgetfulRows {
 public:
  ForgetfulRows() { ++living_; }
  ~ForgetfulRows() { --living_; }
  ForgetfulRows(const ForgetfulRows&) = delete;
  ForgetfulRows& operator=(const ForgetfulRows&) = delete;
  static bool active() { return living_.load(std::memory_order_relaxed) > 0; }

 private:
  inline static std::atomic<int> living_{0};
};

}  // namespace tessera::nn
