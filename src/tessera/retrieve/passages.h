// Splits texts into passages (chunks) for embedding and retrieval. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::retrieve {

/// A range of a text.
struct Span {
  size_t begin = 0, end = 0;              // bytes
  int64_t first_line = 1, last_line = 1;  // 1-based
};

struct PassageOptions {
  int64_t tokens = 200;  // max. tokens of a passage, counted line by line
  int64_t overlap = 40;  // max. tokens repeated from the passage before, in whole lines
};

/// Passages in order; together they cover a text without its blank lines. A passage ends where the
/// next line would exceed the limit, or earlier, from half the limit on, at a blank line or a
/// heading (a line that begins with #); after these there is no overlap. A longer line is split
/// after a sentence, otherwise after a word, otherwise between characters. Throws Error(usage) for
/// invalid options.
std::vector<Span> passages_of(std::string_view text,
                              const text::Tokenizer& tokenizer,
                              const PassageOptions& options);

}  // namespace tessera::retrieve
