// What must hold for every tokenizer that a reader lets through.
#pragma once

#include "fuzz.h"

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/utf8.h"

namespace tessera::fuzz {

/// Encoding may refuse a text on which a pattern of the tokenizer exceeds its limits.
inline constexpr auto kTokenizerKinds = {ErrorKind::file, ErrorKind::input};
inline constexpr std::string_view kSomeText = "Hello  <s>w\xc3\xb6rld 12\n";

inline void check_tokenizer(const text::Tokenizer& tokenizer, std::string_view text = kSomeText) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text.substr(0, 4096), {true, parse_special});
    for (const int32_t id : ids)
      check(id >= 0 && id < tokenizer.vocab_size(), "an id stands for a token");
    const std::string whole = tokenizer.decode(ids, false);
    check(text::is_valid_utf8(whole), "a decoded text is UTF-8");
    text::StreamDecoder stream(tokenizer, false);
    std::string parts;
    for (const int32_t id : ids) parts += stream.push(id);
    check(parts + stream.finish() == whole, "a text decoded token by token is the text");
  }
  for (const auto role : {tokenizer.bos(), tokenizer.eos(), tokenizer.unk(), tokenizer.pad()})
    check(!role || (*role >= 0 && *role < tokenizer.vocab_size()), "a role stands for a token");
}

}  // namespace tessera::fuzz
