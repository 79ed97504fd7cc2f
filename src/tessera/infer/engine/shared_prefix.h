// Which rows of a batch begin alike, so that what they share is computed once. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/infer/engine/sequence.h"

namespace tessera::infer {

/// A row that begins as row `row` does, for `at` tokens.
struct Wait {
  size_t row = 0;
  int64_t at = 0;
};

/// For each sequence the other that it may begin with, once that one has seen `at` tokens. fed[i]
/// tokens of sequence i are computed already. What is gained, sources included, is at least `least`
/// tokens; no sequence waits for one that is past that point, nor, over others, for itself.
/// Sequence i takes over its first most[i] tokens at most. Those of other salts share nothing.
std::vector<std::optional<Wait>> shared_prefixes(const std::vector<const Sequence*>& sequences,
                                                 const std::vector<int64_t>& fed,
                                                 const std::vector<int64_t>& most,
                                                 int64_t least);

}  // namespace tessera::infer
