// Passkey retrieval: a number hidden in filler text (Mohtashami, Jaggi 2023, arXiv:2305.16300).
// Torch-free.
#pragma once

#include <string>

#include "tessera/base/rng.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {

struct Passkey {
  std::string prompt;
  std::string answer;  // " " and five digits
};

/// A prompt with the filler repeated `before` and `after` times around the number, drawn from
/// `key`.
Passkey make_passkey(int64_t before, int64_t after, const RandomKey& key);

/// The longest prompt of at most `length` tokens with its answer; `depth`: the share of the filler
/// before the number, 0 to 1. Throws Error(usage) if `length` has no room for one without filler.
Passkey make_passkey(const text::Tokenizer& tokenizer,
                     int64_t length,
                     double depth,
                     const RandomKey& key);

}  // namespace tessera::infer
