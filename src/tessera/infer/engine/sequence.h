// What a row reads and says.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace at {
class Tensor;
}

namespace tessera::infer {

/// Tokens in order. Beside an encoder they are the target, and `source` is what the encoder reads.
struct Sequence {
  std::vector<int64_t> source, tokens;
  int64_t prefix = 0;  // the first of the tokens, which were given at once (nn::Segment::prefix)
  /// What an encoder reads instead of ids (nn/embed/feature_embed.h), where it does; `source` then
  /// has an id of no meaning for each token that it makes of it.
  std::shared_ptr<const at::Tensor> features = nullptr;
  /// Only rows of one salt share what has been computed; of kAlone none does.
  static constexpr int64_t kAlone = -1;
  int64_t salt = 0;
};

inline int64_t size_of(const std::vector<int64_t>& ids) {
  return static_cast<int64_t>(ids.size());
}

}  // namespace tessera::infer
