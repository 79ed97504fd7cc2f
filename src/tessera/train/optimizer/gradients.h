// What is asked of the gradients of many parameters together. Torch-free, float32. Work is cut into
// fixed chunks: every bit is the same for any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

/// The gradient of one parameter; nullptr where nothing reached it.
struct Gradient {
  const float* data = nullptr;
  int64_t elements = 0;
};

/// Euclidean norm of all together, summed in double; not finite when one of them is not.
double norm_of(std::span<const Gradient> gradients);

/// Euclidean norm of what was added to them since `before`, which they then are; what is empty or
/// missing there counts as zeros.
double norm_of_change(std::span<const Gradient> now, std::vector<std::vector<float>>& before);

/// The last that holds an infinity or NaN, -1 when none does. Parameters are declared in the order
/// of use, and a gradient travels backwards: that is the one nearest to the loss.
int64_t last_nonfinite(std::span<const Gradient> gradients);

}  // namespace tessera::train
