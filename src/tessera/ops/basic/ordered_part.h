// For the contract suite, which looks for operations whose bits depend on the number of threads.
#pragma once

namespace tessera::ops {

/// While one lives, this thread computes a part of an op that is cut without regard to threads: one
/// that libtorch computes on one thread, or whose numbers no cut changes.
class OrderedPart {
 public:
  OrderedPart() { ++living_; }
  ~OrderedPart() { --living_; }
  OrderedPart(const OrderedPart&) = delete;
  OrderedPart& operator=(const OrderedPart&) = delete;
  static bool active() { return living_ > 0; }

 private:
  inline static thread_local int living_ = 0;
};

}  // namespace tessera::ops
