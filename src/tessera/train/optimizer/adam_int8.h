// AdamW and Adam whose moments are kept in blocks of 8 bits. Torch-free.
//
// A block of 256 numbers is its largest magnitude, in float32, and a byte for each number, the
// place of the nearest one in a table of 256 that is finer towards zero (dynamic tree quantisation:
// Dettmers et al. 2022, arXiv:2110.02861, sec. 2.2). An update unpacks a block, computes in float32
// as AdamW does, and packs it. Parameters of fewer than 4096 elements keep float32.
#pragma once

#include "tessera/train/optimizer/adamw.h"

namespace tessera::train {

/// The 256 numbers that a byte stands for, rising: of moments with a sign in [-1, 1], of others in
/// [0, 1].
std::span<const float> dynamic_table(bool with_sign);

/// Bytes and scale of one block, and back.
void pack_block(std::span<const float> values, bool with_sign, uint8_t* bytes, float& scale);
void unpack_block(const uint8_t* bytes, float scale, bool with_sign, std::span<float> values);

class AdamInt8 final : public UpdateRule {
 public:
  static constexpr int64_t kBlock = 256, kSmallest = 4096;

  /// Slots of kSmallest elements or more; the others are AdamW's.
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
