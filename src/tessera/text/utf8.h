// UTF-8 encoding and decoding, and the Unicode properties that tokenizers need. Invalid bytes
// become U+FFFD, one for each maximal subpart (Unicode 15, sec. 3.9, "U+FFFD Substitution of
// Maximal Subparts"), as in Rust's from_utf8_lossy and browsers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// Length in bytes of the well-formed character at `text[at]`; 0 when there is none.
size_t character_length(std::string_view text, size_t at);
/// The code point of the well-formed character of `length` bytes at `text[at]`.
char32_t code_point_at(std::string_view text, size_t at, size_t length);
void append_character(std::string& out, char32_t code_point);

/// Calls visit(code_point, begin, end) for each character of well-formed text.
template <class Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (size_t at = 0; at < text.size();) {
    size_t length = character_length(text, at);
    if (length == 0) length = 1;  // only for text that is not well-formed; guarantees progress
    visit(code_point_at(text, at, length), at, at + length);
    at += length;
  }
}

bool is_valid_utf8(std::string_view text);
/// A copy in which invalid bytes are U+FFFD.
std::string to_valid_utf8(std::string_view text);

/// Assembles a stream of bytes into whole characters; incomplete characters are buffered.
class Utf8Assembler {
 public:
  /// Appends to `out` all characters that are complete after `bytes`.
  void push(std::string_view bytes, std::string& out);
  /// Appends U+FFFD for an incomplete character at the end of the stream.
  void finish(std::string& out);

 private:
  std::string waiting_;  // at most 3 bytes between calls
};

bool is_white_space(char32_t c);  // Unicode White_Space
bool is_numeric(char32_t c);      // Nd, Nl, No
bool is_decimal(char32_t c);      // Nd
bool is_mark(char32_t c);         // Mn, Mc, Me
// The next four have the properties of Unicode 8, as in the `tokenizers` library; newer characters
// have none of them.
bool is_punctuation(char32_t c);      // P*, or one of the ASCII symbols $+<=>^`|~
bool is_control(char32_t c);          // Cc, Cf, Co
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_ideograph(char32_t c);        // the blocks that BERT treats as Chinese
bool is_word_character(char32_t c);   // letter, mark, decimal digit, letter number, connector

/// Unicode simple lower case, plus the one unconditional expansion (U+0130).
void append_lower_case(std::string& out, char32_t c);

}  // namespace tessera::text
