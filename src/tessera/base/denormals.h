// Handling of denormal floats (below 2^-126): threads.h flushes them to zero in parallel loops.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tessera {

/// During its lifetime this thread flushes denormal numbers to zero, or keeps them.
class Denormals {
 public:
  enum Kind { flushed, kept };
  explicit Denormals(Kind kind) : before_(control()) {
    set_control(kind == flushed ? before_ | kFlush : before_ & ~kFlush);
  }
  ~Denormals() { set_control(before_); }
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
#if defined(__SSE2__)
  using Control = unsigned;
  static constexpr Control kFlush = _MM_FLUSH_ZERO_ON | 0x40;  // and denormal inputs
  static Control control() {
    return _mm_getcsr();
  }
  static void set_control(Control x) {
    _mm_setcsr(x);
  }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kFlush = uint64_t{1} << 24;
  static Control control() {
    Control x;
    asm volatile("mrs %0, fpcr" : "=r"(x));
    return x;
  }
  static void set_control(Control x) {
    asm volatile("msr fpcr, %0" : : "r"(x));
  }
#else
  using Control = int;
  static constexpr Control kFlush = 0;
  static Control control() {
    return 0;
  }
  static void set_control(Control) {}
#endif
  Control before_;
};

}  // namespace tessera
