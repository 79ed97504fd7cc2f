// AdamW over the memory of many parameters in one pass. Torch-free, float32.
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w = (1 - lr wd) w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Loshchilov, Hutter 2019, arXiv:1711.05101. Work is cut into fixed chunks: every bit of the
// result, the norm of the gradients included, is the same for any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
};

/// One parameter: its memory now, and its gradient; a null gradient leaves it as it is.
struct Parameter {
  float* weight = nullptr;
  const float* gradient = nullptr;
};

class AdamW {
 public:
  struct Slot {
    std::string name;
    int64_t elements = 0;
    bool decays = true;
  };
  AdamW(std::vector<Slot> slots, AdamWSettings settings);

  /// Euclidean norm of all gradients together, summed in double; not finite when one of them is
  /// not.
  double gradient_norm(std::span<const Parameter> parameters) const;
  /// Update number `t` = 1, 2, ... at rate `lr`, gradients times `scale` (clipping).
  void update(std::span<const Parameter> parameters, int64_t t, double lr, double scale);

  const std::vector<Slot>& slots() const { return slots_; }
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

/// The slot nearest to the loss whose gradient holds an infinity or NaN: parameters are declared in
/// the order of use, and a gradient travels backwards. -1 when there is none.
int64_t last_nonfinite(std::span<const Parameter> parameters,
                       const std::vector<AdamW::Slot>& slots);

}  // namespace tessera::train
