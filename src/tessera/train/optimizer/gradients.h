// Norms and checks over the gradients of many parameters. Torch-free, float32. Work is cut into
// fixed chunks: the result is bit-identical for any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tessera::train {

/// The gradient of one parameter; nullptr if it has none.
struct Gradient {
  const float* data = nullptr;
  int64_t elements = 0;
  std::shared_ptr<const void> owner = nullptr;  // keeps a copy alive
};

/// Euclidean norm of all gradients, summed in double; not finite if a gradient is not.
double norm_of(std::span<const Gradient> gradients);

/// Euclidean norm of the change since `before`, which is then updated; empty or missing entries
/// count as zeros.
double norm_of_change(std::span<const Gradient> now, std::vector<std::vector<float>>& before);

/// Index of the last gradient with an infinity or NaN, -1 if none has. Parameters are declared in
/// the order of use and gradients propagate backwards, so this is the one nearest to the loss.
int64_t last_nonfinite(std::span<const Gradient> gradients);

}  // namespace tessera::train
