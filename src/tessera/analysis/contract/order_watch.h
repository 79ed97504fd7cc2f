// Finds operations of libtorch whose bits depend on the number of threads, by their names and
// shapes, at any size: a run with two threads shows them at large sizes alone, and many of them
// only with more threads than a test has.
#pragma once

#include <set>
#include <string>

#include <ATen/record_function.h>

namespace tessera::contract {

/// While it lives, notes such operations on floating numbers of this thread outside parallel
/// regions (inside them libtorch has one thread). At least two threads must be set, or no region is
/// parallel.
class OrderWatch {
 public:
  /// Fewer numbers than `least` are taken for a few whatever the size of the model: those of
  /// experts or heads.
  explicit OrderWatch(int64_t least);
  ~OrderWatch();
  OrderWatch(const OrderWatch&) = delete;
  OrderWatch& operator=(const OrderWatch&) = delete;

  /// "sum of [23, 8] over [0] in MulBackward0", each once.
  const std::set<std::string>& found() const { return found_; }

 private:
  void look(const at::RecordFunction& op);

  int64_t least_;
  std::string node_;  // of the backward pass that runs
  std::set<std::string> found_;
  at::CallbackHandle handle_;
  OrderWatch* before_;
};

}  // namespace tessera::contract
