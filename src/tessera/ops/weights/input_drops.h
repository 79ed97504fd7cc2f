// Dropout of what adapters read: of the input of a weight's adapter matrix A only (Hu et al.
// 2021, arXiv:2106.09685; Adapted::dropout). Products know that a weight has it, and a call knows
// whose random numbers its tokens draw: they meet here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// While it lives, `drop` makes on this thread what A reads of x [.., I], given the probability and
/// the weight's name; the innermost counts. Without one, or where it is null, nothing is dropped.
class InputDrops {
 public:
  using Drop = std::function<Tensor(const Tensor& x, double p, const std::string& weight)>;
  using DropPtr = std::shared_ptr<const Drop>;

  explicit InputDrops(DropPtr drop);
  ~InputDrops();
  InputDrops(const InputDrops&) = delete;
  InputDrops& operator=(const InputDrops&) = delete;

  /// That of this thread, for what is computed again in a backward pass.
  static const DropPtr& current();

 private:
  DropPtr before_;
};

}  // namespace tessera::ops
