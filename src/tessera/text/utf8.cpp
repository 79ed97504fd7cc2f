#include "tessera/text/utf8.h"

#include <algorithm>
#include <array>
#include <span>
#include <utf8proc.h>

namespace tessera::text {
namespace {

// What a lead byte allows: the length and the range of the second byte (RFC 3629, table of sec. 4).
struct Lead {
  uint8_t length, low, high;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // nothing above U+10FFFF
  return {0, 0, 0};
}

struct Subpart {
  size_t length = 0;      // bytes that belong together
  bool complete = false;  // they are a whole character
  bool open = false;      // the text ended before this could be decided
};

Subpart subpart_at(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[at]));
  if (lead.length == 0) return {1, false, false};
  for (size_t i = 1; i < lead.length; ++i) {
    if (at + i >= text.size()) return {i, false, true};
    const auto byte = static_cast<uint8_t>(text[at + i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {i, false, false};
  }
  return {lead.length, true, false};
}

utf8proc_category_t category_of(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

struct Range {
  char32_t first, last;
};

bool contains(std::span<const Range> ranges, char32_t c) {  // ascending, disjoint
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), c,
                                     [](char32_t x, const Range& r) { return x < r.first; });
  return next != ranges.begin() && c <= (next - 1)->last;
}

// Where the punctuation, marks and format characters stand that Unicode 9 to 15 added or gave that
// category. The ranges hold other characters too: they are asked about these categories alone.
constexpr std::array kAfterUnicode8 = std::to_array<Range>(
    {{0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x8E2},     {0x9FD, 0x9FE},
     {0xA76, 0xA76},     {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC3C},
     {0xC77, 0xC77},     {0xC84, 0xC84},     {0xD00, 0xD00},     {0xD3B, 0xD3C},
     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x1886},
     {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E5D},
     {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},
     {0x10D24, 0x10F89}, {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111C9, 0x111C9},
     {0x111CF, 0x111CF}, {0x1123E, 0x11241}, {0x1133B, 0x1133B}, {0x11438, 0x1145E},
     {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182F, 0x11FFF}, {0x12FF1, 0x13455},
     {0x16E97, 0x16F4F}, {0x16FE2, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E4EF},
     {0x1E944, 0x1E95F}});

}  // namespace

size_t character_length(std::string_view text, size_t at) {
  const Subpart part = subpart_at(text, at);
  return part.complete ? part.length : 0;
}

char32_t code_point_at(std::string_view text, size_t at, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  switch (length) {
    case 1:
      return byte(0);
    case 2:
      return ((byte(0) & 0x1Fu) << 6) | (byte(1) & 0x3Fu);
    case 3:
      return ((byte(0) & 0x0Fu) << 12) | ((byte(1) & 0x3Fu) << 6) | (byte(2) & 0x3Fu);
    default:
      return ((byte(0) & 0x07u) << 18) | ((byte(1) & 0x3Fu) << 12) | ((byte(2) & 0x3Fu) << 6) |
             (byte(3) & 0x3Fu);
  }
}

void append_character(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
  } else {
    if (c < 0x10000) {
      out += static_cast<char>(0xE0 | (c >> 12));
    } else {
      out += static_cast<char>(0xF0 | (c >> 18));
      out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    }
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
  }
  out += static_cast<char>(0x80 | (c & 0x3F));
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t length = character_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Utf8Assembler assembler;
  assembler.push(text, out);
  assembler.finish(out);
  return out;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!waiting_.empty()) {
    joined = waiting_ + std::string(bytes);
    waiting_.clear();
    bytes = joined;
  }
  for (size_t at = 0; at < bytes.size();) {
    const Subpart part = subpart_at(bytes, at);
    if (part.open) {
      waiting_ = bytes.substr(at);
      return;
    }
    out += part.complete ? bytes.substr(at, part.length) : kReplacementCharacter;
    at += part.length;
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (!waiting_.empty()) out += kReplacementCharacter;
  waiting_.clear();
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const auto category = category_of(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool is_decimal(char32_t c) {
  return category_of(c) == UTF8PROC_CATEGORY_ND;
}

bool is_mark(char32_t c) {
  const auto category = category_of(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
  if (c == 0x166D || c == 0x111C9) return true;  // punctuation in Unicode 8 only
  const auto category = category_of(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO &&
         !contains(kAfterUnicode8, c);
}

bool is_control(char32_t c) {
  const auto category = category_of(c);
  if (category == UTF8PROC_CATEGORY_CF) return !contains(kAfterUnicode8, c);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CO;
}

bool is_nonspacing_mark(char32_t c) {
  if (c == 0x1734) return true;  // since Unicode 14 a spacing one
  return category_of(c) == UTF8PROC_CATEGORY_MN && !contains(kAfterUnicode8, c);
}

bool is_ideograph(char32_t c) {
  // 2B820 to 2B91F are missing by an old slip of BERT's first code, which all since have kept
  static constexpr std::array kBlocks = std::to_array<Range>({{0x3400, 0x4DBF},
                                                              {0x4E00, 0x9FFF},
                                                              {0xF900, 0xFAFF},
                                                              {0x20000, 0x2A6DF},
                                                              {0x2A700, 0x2B81F},
                                                              {0x2B920, 0x2CEAF},
                                                              {0x2F800, 0x2FA1F}});
  return contains(kBlocks, c);
}

bool is_word_character(char32_t c) {
  const auto category = category_of(c);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return true;
  if (is_mark(c) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
      category == UTF8PROC_CATEGORY_PC)
    return true;
  // Other_Alphabetic outside the categories above, and Join_Control
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

void append_lower_case(std::string& out, char32_t c) {
  if (c == 0x130) {  // capital I with dot: the only unconditional expansion of SpecialCasing.txt
    out += "i\xCC\x87";
    return;
  }
  append_character(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace tessera::text
