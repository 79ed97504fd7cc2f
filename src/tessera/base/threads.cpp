#include "tessera/base/threads.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "tessera/base/cpu_quota.h"
#include "tessera/base/denormals.h"
#include "tessera/base/error.h"
#include "tessera/base/finest_grain.h"

namespace tessera {
namespace {

std::atomic<int>& count() {
  static std::atomic<int> threads{available_cores()};
  return threads;
}

int64_t whole_grains(int64_t n, int64_t grain) {
  grain = FinestGrain::active() ? 1 : std::max<int64_t>(grain, 1);
  return (n + grain - 1) / grain;
}

void run_here(int64_t n, const std::function<void(int64_t, int64_t)>& body) {
  const Denormals flushed(Denormals::flushed);
  body(0, n);
}

/// Runs a body on ranges of [0, n); the first exception is rethrown afterwards.
class Ranges {
 public:
  Ranges(int64_t n, int64_t count, const std::function<void(int64_t, int64_t)>& body)
      : n_(n), count_(count), body_(body) {}
  void run(int64_t r) {
    const Denormals flushed(Denormals::flushed);
    try {
      body_(n_ * r / count_, n_ * (r + 1) / count_);
    } catch (...) {
#pragma omp critical(tessera_parallel_for_error)
      if (!error_) error_ = std::current_exception();
    }
  }
  void finish() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  int64_t n_, count_;
  const std::function<void(int64_t, int64_t)>& body_;
  std::exception_ptr error_;
};

}  // namespace

int thread_count() {
  return count().load(std::memory_order_relaxed);
}

void set_thread_count(int n) {
  if (n < 1 || n > 4096)
    fail(ErrorKind::usage, "threads", "thread count {}: expected 1 to 4096", n);
  count() = n;
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int64_t count = std::min<int64_t>(thread_count(), whole_grains(n, grain));
  if (count <= 1 || omp_in_parallel()) return run_here(n, body);
  Ranges ranges(n, count, body);
  // a thread gets the same range in every call, whose numbers may still be in its caches
#pragma omp parallel for num_threads(static_cast <int>(count)) schedule(static, 1)
  for (int64_t r = 0; r < count; ++r) ranges.run(r);
  ranges.finish();
}

void parallel_in_turn(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kRangesPerThread = 8;
  if (n <= 0) return;
  const int64_t grains = whole_grains(n, grain),
                threads = std::min<int64_t>(grains, thread_count()),
                count = std::min(grains, kRangesPerThread * threads);
  if (count <= 1 || threads <= 1 || omp_in_parallel()) return run_here(n, body);
  Ranges ranges(n, count, body);
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(dynamic, 1)
  for (int64_t r = 0; r < count; ++r) ranges.run(r);
  ranges.finish();
}

}  // namespace tessera
