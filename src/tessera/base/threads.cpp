#include "tessera/base/threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "tessera/base/error.h"

namespace tessera {
namespace {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, omp_get_num_procs());
}

std::atomic<int>& count() {
  static std::atomic<int> threads{available_cores()};
  return threads;
}

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
  const int64_t ranges = std::min<int64_t>(
      thread_count(), (n + std::max<int64_t>(grain, 1) - 1) / std::max<int64_t>(grain, 1));
  if (ranges <= 1 || omp_in_parallel()) return body(0, n);
  std::exception_ptr error;
#pragma omp parallel for num_threads(static_cast <int>(ranges)) schedule(static, 1)
  for (int64_t r = 0; r < ranges; ++r) {
    try {
      body(n * r / ranges, n * (r + 1) / ranges);
    } catch (...) {
#pragma omp critical(tessera_parallel_for_error)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera
