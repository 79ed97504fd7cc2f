// Texts in passages: what is embedded, found and put before a question. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::retrieve {

/// Part of a text.
struct Span {
  size_t begin = 0, end = 0;              // bytes
  int64_t first_line = 1, last_line = 1;  // counted from 1
};

struct PassageOptions {
  int64_t tokens = 200;  // of a passage at most, as its tokenizer cuts each line
  int64_t overlap = 40;  // tokens at most that it repeats of the one before, in whole lines
};

/// Passages in order; together they cover all of a text but blank lines. A passage ends where the
/// next line would pass the limit, or before that, from half the limit on, at a blank line or a
/// heading (a line that begins with #), behind which nothing is repeated. A line that is longer is
/// cut behind a sentence, else behind a word, else between characters. Throws Error(usage) for
/// options that make no sense.
std::vector<Span> passages_of(std::string_view text,
                              const text::Tokenizer& tokenizer,
                              const PassageOptions& options);

}  // namespace tessera::retrieve
