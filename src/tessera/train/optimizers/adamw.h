// AdamW over the memory of many parameters in one pass. Torch-free, float32.
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w = (1 - lr wd) w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Loshchilov, Hutter 2019, arXiv:1711.05101. Work is cut into fixed chunks: every bit of the
// result is the same for any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

/// One parameter: its memory now, and its gradient; a null gradient leaves it as it is.
struct Parameter {
  float* weight = nullptr;
  const float* gradient = nullptr;
};

class AdamW {
 public:
  struct Slot {
    int64_t elements = 0;
    double weight_decay = 0;  // wd
    double lr_factor = 1;
  };
  AdamW(std::vector<Slot> slots, AdamWSettings settings);

  /// Update number `t` = 1, 2, ... at rate `lr`, gradients times `scale` (clipping).
  void update(std::span<const Parameter> parameters, int64_t t, double lr, double scale);

  std::span<float> first_moment(size_t slot) {
    return {m_.data() + begins_[slot], static_cast<size_t>(slots_[slot].elements)};
  }
  std::span<float> second_moment(size_t slot) {
    return {v_.data() + begins_[slot], static_cast<size_t>(slots_[slot].elements)};
  }

 private:
  struct Chunk {
    size_t slot;
    int64_t begin, end;  // elements of the slot
  };
  std::vector<Slot> slots_;
  AdamWSettings settings_;
  std::vector<Chunk> chunks_;
  std::vector<int64_t> begins_;  // of each slot in the moments
  std::vector<float> m_, v_;
};

}  // namespace tessera::train
