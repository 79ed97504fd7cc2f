// Threads that go through many short steps together: one parallel region for all of them, and a
// barrier between two steps, which costs a tenth of what ending a region and beginning another one
// does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace tessera {

/// The threads of work_together(), as each of them sees them.
class Team {
 public:
  struct Share {
    int64_t begin, end;
  };

  int64_t index() const { return index_; }  // of this thread
  int64_t size() const { return size_; }
  /// This thread's part of [0, n): ranges in order of the threads, as equal as whole numbers can be.
  Share share(int64_t n) const { return {n * index_ / size_, n * (index_ + 1) / size_}; }
  /// Returns when every thread has called it; what they wrote before is seen by all. Threads that
  /// wait turn in a circle for a while before they leave the core to others.
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

/// Calls body on every thread that parallel_for would use, at once; on this one alone within a
/// parallel region. All must wait() equally often. The first exception thrown by a body is rethrown
/// here; threads that wait for the one that threw, or would later, end with it. Denormal numbers
/// are zeros inside, as in parallel_for, and loops begun there run on the thread that begins them.
void work_together(const std::function<void(Team&)>& body);

}  // namespace tessera
