// Guesses from the text so far: what followed where it said the same before. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/infer/speculation/draft_tree.h"

namespace tessera::infer {

/// The longest run of at most `longest` last tokens that stands earlier too, the latest place of
/// it: at most `count` of the tokens that follow there. Empty when not even the last token does.
/// `expected` is what the text may come to say: a place in it goes before one of an equally long
/// run in the text.
std::vector<int64_t> prompt_lookup(std::span<const int64_t> tokens,
                                   int64_t longest,
                                   int64_t count,
                                   std::span<const int64_t> predicted = {});
/// The same of up to `width` places, those of the longest runs, the latest first: what follows
/// there, as a tree.
DraftTree prompt_lookup_tree(std::span<const int64_t> tokens,
                             int64_t longest,
                             int64_t count,
                             int64_t width,
                             std::span<const int64_t> predicted = {});

}  // namespace tessera::infer
