// Token sequence of one row.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace at {
class Tensor;
}

namespace tessera::infer {

/// Tokens in order. With an encoder they are the target, and `source` is the encoder's input.
struct Sequence {
  std::vector<int64_t> source, tokens;
  int64_t prefix = 0;  // number of first tokens with bidirectional attention (nn::Segment::prefix)
  /// Encoder input instead of ids (nn/embed/feature_embed.h). `source` then has a placeholder id
  /// for each encoder token.
  std::shared_ptr<const at::Tensor> features = nullptr;
  /// Only rows of the same salt share cached state; rows with kAlone share with none.
  static constexpr int64_t kAlone = -1;
  int64_t salt = 0;
};

inline int64_t size_of(const std::vector<int64_t>& ids) {
  return static_cast<int64_t>(ids.size());
}

}  // namespace tessera::infer
