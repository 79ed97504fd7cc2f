// AdamW and Adam with moments in 8-bit blocks. Torch-free.
//
// A block of 256 numbers is stored as its largest magnitude, in float32, and a byte for each
// number: the index of the nearest value in a table of 256 that is finer towards zero (dynamic tree
// quantization: Dettmers et al. 2022, arXiv:2110.02861, sec. 2.2). An update dequantizes a block,
// computes in float32 as AdamW does, and quantizes it. Parameters of fewer than 4096 elements stay
// float32.
#pragma once

#include "tessera/train/optimizer/adamw.h"

namespace tessera::train {

/// The 256 values of the codes, ascending: in [-1, 1] with sign, in [0, 1] without.
std::span<const float> dynamic_table(bool with_sign);

/// Quantizes one block to bytes and scale, and back.
void pack_block(std::span<const float> values, bool with_sign, uint8_t* bytes, float& scale);
void unpack_block(const uint8_t* bytes, float scale, bool with_sign, std::span<float> values);

class AdamInt8 final : public UpdateRule {
 public:
  static constexpr int64_t kBlock = 256, kSmallest = 4096;

  /// Parameters of at least kSmallest elements; the others are AdamW's.
  AdamInt8(std::vector<ParameterInfo> slots, AdamWSettings settings);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  struct Packed {
    std::vector<uint8_t> bytes;
    std::vector<float> scales;
  };
  std::vector<ParameterInfo> slots_;
  AdamWSettings settings_;
  ElementChunks pieces_;
  std::vector<Packed> m_, v_;
};

}  // namespace tessera::train
