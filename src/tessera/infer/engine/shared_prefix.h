// Finds common prefixes in a batch, so that each is computed once. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/infer/engine/sequence.h"

namespace tessera::infer {

/// The sequence has its first `at` tokens in common with row `row`, and waits for that row.
struct Wait {
  size_t row = 0;
  int64_t at = 0;
};

/// For each sequence, the other sequence whose prefix it can reuse once that one has been fed `at`
/// tokens. fed[i] tokens of sequence i have been computed. A wait saves at least `least` tokens,
/// sources included. No sequence waits for one that is past that point, and there are no cycles.
/// Sequence i reuses at most its first most[i] tokens. Sequences with different salts share
/// nothing. O(n log n) comparisons.
std::vector<std::optional<Wait>> shared_prefixes(const std::vector<const Sequence*>& sequences,
                                                 const std::vector<int64_t>& fed,
                                                 const std::vector<int64_t>& most,
                                                 int64_t least);

}  // namespace tessera::infer
