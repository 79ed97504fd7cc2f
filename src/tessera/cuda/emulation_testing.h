// CUDA kernels on the CPU, for tests: the same sources, compiled by the compiler of the host. Every
// thread of a block runs a phase to its end before the next thread does, blocks run one after
// another, and shared memory begins as NaN. Run in both orders (`Order`), equal bits show that no
// thread reads what another one writes in the same phase, and no block what another block writes.
// Not shown: rounding of a GPU (it fuses a * b + c; its exp differs in the last bits), time.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/cuda/block.h"
#include "tessera/cuda/kernels.h"

namespace tessera::cuda {

enum class Order { forwards, backwards };

template <int kThreads>
class EmulatedBlock {
 public:
  template <class T>
  class PerThread {
   public:
    PerThread() : values_(kThreads) {}
    T& operator[](int thread) { return values_[static_cast<size_t>(thread)]; }

   private:
    std::vector<T> values_;
  };

  EmulatedBlock(int64_t x, int64_t y, int64_t z, Order order)
      : x_(x), y_(y), z_(z), order_(order) {}
  int64_t x() const { return x_; }
  int64_t y() const { return y_; }
  int64_t z() const { return z_; }

  template <class Phase>
  void each(const Phase& phase) const {
    for (int i = 0; i < kThreads; ++i) phase(order_ == Order::forwards ? i : kThreads - 1 - i);
  }

 private:
  int64_t x_, y_, z_;
  Order order_;
};

/// Runs a kernel on memory of the host.
template <class Struct>
void emulate(const Grid& grid, const typename Struct::Arguments& in, Order order) {
  const int64_t blocks = grid.x * grid.y * grid.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t at = order == Order::forwards ? i : blocks - 1 - i;
    EmulatedBlock<Struct::kThreads> block(at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y,
                                          order);
    const auto memory = std::make_unique<unsigned char[]>(sizeof(typename Struct::Shared));
    std::memset(memory.get(), 0xff, sizeof(typename Struct::Shared));
    Struct::run(block, *reinterpret_cast<typename Struct::Shared*>(memory.get()), in);
  }
}

/// A launcher that emulates. While it lives, launches of the process go to it.
class Emulator final : public Launcher {
 public:
  using Around = std::function<void(const std::function<void()>&)>;

  /// `around` is called with each kernel's run, to make its memory accessible.
  explicit Emulator(Order order = Order::forwards, Around around = {})
      : order_(order), around_(std::move(around)) {
    set_launcher(this);
  }
  ~Emulator() override { set_launcher(nullptr); }
  Emulator(const Emulator&) = delete;
  Emulator& operator=(const Emulator&) = delete;

  void launch(Kernel kernel, const Grid& grid, int, const void* arguments, const Stream&) override {
    {
      const std::lock_guard lock(mutex_);
      ++launches_[kernel];
    }
    const auto run = [&] { run_one(kernel, grid, arguments); };
    around_ ? around_(run) : run();
  }
  /// How often each kernel was launched.
  std::map<Kernel, int64_t> launches() {
    const std::lock_guard lock(mutex_);
    return launches_;
  }

 private:
  void run_one(Kernel kernel, const Grid& grid, const void* arguments) const {
    switch (kernel) {
#define TESSERA_CUDA_KERNEL(name, Struct) \
  case Kernel::name:                      \
    return emulate<Struct>(grid, *static_cast<const Struct::Arguments*>(arguments), order_);
#include "tessera/cuda/kernels.def"
#undef TESSERA_CUDA_KERNEL
    }
  }

  Order order_;
  Around around_;
  std::mutex mutex_;
  std::map<Kernel, int64_t> launches_;
};

}  // namespace tessera::cuda
