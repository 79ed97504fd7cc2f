// Cooperative cancellation: a flag that long work polls between tokens, steps and files; it then
// throws Error(cancelled).
#pragma once

#include <atomic>

#include "tessera/base/error.h"

namespace tessera {

class CancelToken {
 public:
  /// Safe to call from a signal handler; `signal` is remembered for the exit code.
  void request(int signal = 0) {
    signal_.store(signal, std::memory_order_relaxed);
    requested_.store(true, std::memory_order_release);
  }
  /// Resets the flag for the next work; no earlier work may still poll it.
  void reset() {
    requested_.store(false, std::memory_order_relaxed);
    signal_.store(0, std::memory_order_relaxed);
  }
  bool requested() const { return requested_.load(std::memory_order_acquire); }
  int signal() const { return signal_.load(std::memory_order_relaxed); }
  void check(std::string_view where) const {
    if (requested()) fail(ErrorKind::cancelled, where, "stopped on request");
  }

 private:
  std::atomic<bool> requested_{false};
  std::atomic<int> signal_{0};
};

}  // namespace tessera
