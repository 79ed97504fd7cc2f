// Threads that perform many short steps together: one parallel region with a barrier between steps,
// which costs a tenth of ending a region and starting another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace tessera {

/// The threads of work_together(), as seen by each of them.
class Team {
 public:
  struct Share {
    int64_t begin, end;
  };

  int64_t index() const { return index_; }  // of this thread
  int64_t size() const { return size_; }
  /// This thread's part of [0, n): ranges in thread order, as equal as possible.
  Share share(int64_t n) const { return {n * index_ / size_, n * (index_ + 1) / size_}; }
  /// Barrier: returns when every thread has called it, with all their writes visible. Waiting
  /// threads spin for a while before they yield the core.
  void wait();

 private:
  friend void work_together(const std::function<void(Team&)>& body);
  struct Meeting {
    std::atomic<int64_t> arrived{0};
    alignas(64) std::atomic<uint64_t> round{0};
    alignas(64) std::atomic<bool> failed{false};
  };
  Team(Meeting& meeting, int64_t index, int64_t size)
      : meeting_(meeting), index_(index), size_(size) {}

  Meeting& meeting_;
  int64_t index_, size_;
};

/// Calls body on every thread of parallel_for at once; on the calling thread only inside a parallel
/// region. All must call the barrier equally often. The first exception of a body is rethrown here;
/// threads at a barrier, now or later, end with it. Denormal numbers are zeros inside, as in
/// parallel_for, and nested loops run on the calling thread.
void work_together(const std::function<void(Team&)>& body);

}  // namespace tessera
