// Prompt lookup decoding: draft tokens are what followed an earlier occurrence of the last tokens.
// Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/infer/speculation/draft_tree.h"

namespace tessera::infer {

/// Finds the longest suffix of at most `longest` tokens that occurs earlier, at its latest
/// occurrence, and returns at most `count` of the tokens that follow there. Empty if the last token
/// does not occur earlier. In `predicted`, the predicted output, a match wins over an equally long
/// one in the text.
std::vector<int64_t> prompt_lookup(std::span<const int64_t> tokens,
                                   int64_t longest,
                                   int64_t count,
                                   std::span<const int64_t> predicted = {});
/// As prompt_lookup() with up to `width` occurrences, those of the longest matches, the latest
/// first, merged into a tree.
DraftTree prompt_lookup_tree(std::span<const int64_t> tokens,
                             int64_t longest,
                             int64_t count,
                             int64_t width,
                             std::span<const int64_t> predicted = {});

}  // namespace tessera::infer
