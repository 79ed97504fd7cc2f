#include "tessera/base/team.h"

#include <omp.h>

#include <exception>

#include "tessera/base/denormals.h"
#include "tessera/base/threads.h"

namespace tessera {
namespace {

/// Another thread has failed: this one stops.
struct Abandoned {};

// about 20 us, several times what a step of a small model lasts
constexpr int kTurns = 1000;

void relax() {
#ifdef __SSE2__
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Wakes the threads that sleep at the barrier.
void next(std::atomic<uint64_t>& round) {
  round.fetch_add(1, std::memory_order_release);
  round.notify_all();
}

}  // namespace

void Team::wait() {
  if (size_ == 1) return;
  const uint64_t round = meeting_.round.load(std::memory_order_relaxed);
  if (meeting_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    meeting_.arrived.store(0, std::memory_order_relaxed);
    return next(meeting_.round);
  }
  for (int turn = 0; meeting_.round.load(std::memory_order_acquire) == round; ++turn) {
    if (meeting_.failed.load(std::memory_order_relaxed)) break;
    if (turn < kTurns)
      relax();
    else
      meeting_.round.wait(round, std::memory_order_acquire);
  }
  if (meeting_.failed.load(std::memory_order_relaxed)) throw Abandoned();
}

void work_together(const std::function<void(Team&)>& body) {
  Team::Meeting meeting;
  std::exception_ptr error;
  const auto run = [&](int64_t index, int64_t size) {
    const Denormals flushed(Denormals::flushed);
    Team team(meeting, index, size);
    try {
      body(team);
    } catch (const Abandoned&) {
    } catch (...) {
#pragma omp critical(tessera_team_error)
      if (!error) error = std::current_exception();
      meeting.failed = true;
      next(meeting.round);
    }
  };
  if (thread_count() <= 1 || omp_in_parallel()) {
    run(0, 1);
  } else {
#pragma omp parallel num_threads(thread_count())
    run(omp_get_thread_num(), omp_get_num_threads());
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera
