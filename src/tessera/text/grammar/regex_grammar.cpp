#include "tessera/text/grammar/regex_grammar.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr char32_t kLastCode = 0x10FFFF;
constexpr int64_t kNoEnd = Grammar::kAnyTimes;

CharacterRanges common_ranges(const CharacterRanges& a, const CharacterRanges& b) {
  CharacterRanges out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const char32_t first = std::max(a[i].first, b[j].first),
                   last = std::min(a[i].second, b[j].second);
    if (first <= last) out.emplace_back(first, last);
    if (a[i].second < b[j].second)
      ++i;
    else
      ++j;
  }
  return out;
}

const CharacterRanges& regex_digits() {
  static const CharacterRanges ranges = {{'0', '9'}};
  return ranges;
}
const CharacterRanges& regex_words() {
  static const CharacterRanges ranges = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return ranges;
}
/// ECMA-262: WhiteSpace and LineTerminator.
const CharacterRanges& regex_spaces() {
  static const CharacterRanges ranges = {
      {9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return ranges;
}
const CharacterRanges& regex_line_ends() {
  static const CharacterRanges ranges = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return ranges;
}

/// The escape of a character in a JSON string.
std::string json_escape_of(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

class RegexReader {
 public:
  RegexReader(Grammar& grammar,
              std::string_view pattern,
              Spelling spelling,
              const std::string& where)
      : g_(grammar), pattern_(pattern), spelling_(spelling), where_(where) {}

  RegexPart read(bool whole) {
    constexpr size_t kMostBytes = 64 << 10;
    if (pattern_.size() > kMostBytes || !is_valid_utf8(pattern_))
      fail(ErrorKind::input, where_, "a pattern of {} bytes; expected at most {}, in UTF-8",
           pattern_.size(), kMostBytes);
    const RegexPart part = choice(0, whole, whole);
    if (at_ < pattern_.size()) bad("a ) without its (");
    return part;
  }

 private:
  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorKind::input, where_, "pattern \"{}\": {} at character {}",
         to_valid_utf8(pattern_.substr(0, 200)), what, at_);
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  RegexPart any_text() { return {g_.repeat(one({{0, kLastCode}}), 0, kNoEnd), 0, kNoEnd}; }
  int32_t one(const CharacterRanges& ranges) { return spelled(g_, ranges, spelling_); }

  static int64_t sum(int64_t a, int64_t b) { return a == kNoEnd || b == kNoEnd ? kNoEnd : a + b; }

  /// If a group is the whole pattern, its alternatives may have anchors.
  bool is_all(size_t begin) const {
    int depth = 0;
    for (size_t i = begin; i < pattern_.size(); ++i) {
      if (pattern_[i] == '\\') {
        ++i;
      } else if (pattern_[i] == '[') {
        while (++i < pattern_.size() && pattern_[i] != ']') i += pattern_[i] == '\\' ? 1 : 0;
      } else if (pattern_[i] == '(') {
        ++depth;
      } else if (pattern_[i] == ')' && --depth == 0) {
        return i + 1 == pattern_.size();
      }
    }
    return false;
  }

  /// begins, ends: the part is at the beginning or the end; other positions only at depth 0.
  RegexPart choice(int depth, bool begins, bool ends) {
    if (depth > Grammar::kMostDepth) bad("groups too deep");
    std::vector<int32_t> parts;
    RegexPart out{0, INT64_MAX, 0};
    do {
      const RegexPart part = alternative(depth, begins, ends);
      parts.push_back(part.node);
      out.least = std::min(out.least, part.least);
      out.most = out.most == kNoEnd || part.most == kNoEnd ? kNoEnd : std::max(out.most, part.most);
    } while (take("|"));
    out.node = g_.choice(std::move(parts));
    return out;
  }

  RegexPart alternative(int depth, bool begins, bool ends) {
    std::vector<int32_t> parts;
    RegexPart out{0, 0, 0};
    const auto add = [&](const RegexPart& part) {
      parts.push_back(part.node);
      out.least += part.least;
      if (out.least > Grammar::kMostTimes) bad("too long a text");
      out.most = sum(out.most, part.most);
    };
    bool anchored = false, closed = false;
    if (depth == 0) {
      while (take("^")) anchored = true;
      // a pattern that is one group: its alternatives have their own anchors
      if (!anchored && !begins && !ends && at_ == 0 && peek() == '(' && is_all(0)) {
        open();
        const RegexPart inner = choice(0, begins, ends);
        if (!take(")")) bad("a ( without its )");
        return inner;
      }
      if (!anchored && !begins) add(any_text());
    }
    while (at_ < pattern_.size() && peek() != '|' && peek() != ')') {
      if (closed) bad("text after $");
      if (peek() == '$') {
        if (depth > 0) bad("$ within a group");
        ++at_;
        while (take("$")) {
        }
        closed = true;
        continue;
      }
      add(repeated(atom(depth)));
    }
    if (depth == 0 && !closed && !ends) add(any_text());
    out.node = g_.sequence(std::move(parts));
    return out;
  }

  void open() {
    ++at_;
    if (!take("?")) return;
    if (take(":")) return;
    if (take("P<") || (peek() == '<' && peek(1) != '=' && peek(1) != '!')) {
      take("<");
      while (at_ < pattern_.size() && peek() != '>') ++at_;
      if (!take(">")) bad("a name without its >");
      return;
    }
    bad("look-around or flags, which no grammar can follow,");
  }

  RegexPart atom(int depth) {
    const char c = peek();
    if (c == '(') {
      open();
      const RegexPart part = choice(depth + 1, true, true);
      if (!take(")")) bad("a ( without its )");
      return part;
    }
    if (c == '^') bad("^ after the beginning");
    if (c == '*' || c == '+' || c == '?') bad("a repetition of nothing");
    CharacterRanges ranges;
    if (c == '[') {
      ranges = klass();
    } else if (c == '.') {
      ++at_;
      ranges = complement(regex_line_ends());
    } else if (c == '\\') {
      ranges = escape(false);
    } else {
      const char32_t code = character();
      ranges = {{code, code}};
    }
    return {one(ranges), 1, 1};
  }

  char32_t character() {
    const size_t n = character_length(pattern_, at_);
    const char32_t c = code_point_at(pattern_, at_, n);
    at_ += n;
    return c;
  }

  char32_t hex(int count) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) bad("too few hexadecimal digits");
      value = 16 * value + static_cast<char32_t>(digit);
    }
    return value;
  }

  CharacterRanges escape(bool in_class) {
    ++at_;
    if (at_ >= pattern_.size()) bad("a \\ at the end");
    const char c = peek();
    const auto known = [&](const CharacterRanges& ranges) {
      ++at_;
      return ranges;
    };
    const auto code = [&](char32_t value) {
      ++at_;
      return CharacterRanges{{value, value}};
    };
    switch (c) {
      case 'd':
        return known(regex_digits());
      case 'D':
        return known(complement(regex_digits()));
      case 'w':
        return known(regex_words());
      case 'W':
        return known(complement(regex_words()));
      case 's':
        return known(regex_spaces());
      case 'S':
        return known(complement(regex_spaces()));
      case 'n':
        return code('\n');
      case 'r':
        return code('\r');
      case 't':
        return code('\t');
      case 'f':
        return code('\f');
      case 'v':
        return code('\v');
      case '0':
        if (peek(1) >= '0' && peek(1) <= '9') bad("an octal code");
        return code(0);
      case 'x':
      case 'u': {
        ++at_;
        char32_t value = 0;
        if (c == 'u' && take("{")) {
          while (peek() != '}' && value <= kLastCode) value = 16 * value + hex(1);
          if (!take("}")) bad("a code without its }");
        } else {
          value = hex(c == 'x' ? 2 : 4);
          // two halves of one character
          if (value >= 0xD800 && value < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
            at_ += 2;
            value = 0x10000 + ((value - 0xD800) << 10) + (hex(4) - 0xDC00);
          }
        }
        if (value > kLastCode || (value >= 0xD800 && value < 0xE000)) bad("a code of no character");
        return {{value, value}};
      }
      case 'b':
        if (in_class) return code('\b');
        [[fallthrough]];
      case 'B':
      case 'A':
      case 'Z':
      case 'z':
        bad("\\b and its like, which no grammar can follow,");
      case 'p':
      case 'P':
      case 'k':
      case 'c':
        bad("\\p, \\k or \\c, which are not supported,");
      default:
        break;
    }
    if (c >= '1' && c <= '9') bad("a back-reference, which no grammar can follow,");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) bad("an unknown escape");
    const char32_t value = character();
    return {{value, value}};
  }

  CharacterRanges klass() {
    ++at_;
    const bool others = take("^");
    CharacterRanges ranges;
    while (peek() != ']' || at_ >= pattern_.size()) {
      if (at_ >= pattern_.size()) bad("a [ without its ]");
      const CharacterRanges first = member();
      const bool single = first.size() == 1 && first[0].first == first[0].second;
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < pattern_.size() && single) {
        ++at_;
        const CharacterRanges last = member();
        if (last.size() != 1 || last[0].first != last[0].second || last[0].first < first[0].first)
          bad("a range that does not go up");
        ranges.emplace_back(first[0].first, last[0].first);
      } else {
        ranges.insert(ranges.end(), first.begin(), first.end());
      }
    }
    ++at_;
    ranges = normalized(std::move(ranges));
    return others ? complement(ranges) : ranges;
  }

  CharacterRanges member() {
    if (at_ >= pattern_.size()) bad("a [ without its ]");
    if (peek() == '\\') return escape(true);
    const char32_t c = character();
    return {{c, c}};
  }

  std::optional<int64_t> number() {
    int64_t n = 0;
    const size_t begin = at_;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      n = 10 * n + (peek() - '0');
      if (n > Grammar::kMostTimes) bad("too many repetitions");
    }
    return begin == at_ ? std::nullopt : std::optional(n);
  }

  RegexPart repeated(RegexPart part) {
    for (int times = 0; times < Grammar::kMostDepth; ++times) {
      int64_t least = 0, most = kNoEnd;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (peek() == '{') {
        const size_t at = at_++;
        const auto m = number();
        const bool comma = take(",");
        const auto n = comma ? number() : m;
        if (!m || !take("}")) {  // a literal brace
          at_ = at;
          return part;
        }
        least = *m;
        most = n ? *n : kNoEnd;
        if (most != kNoEnd && most < least) bad("{m,n} with n below m");
      } else {
        return part;
      }
      take("?");  // laziness does not change the language
      if (peek() == '+' && most != kNoEnd) bad("a possessive repetition");
      part.node = g_.repeat(part.node, least, most);
      const bool none = part.most == 0 || most == 0;
      part.least *= least;
      if (part.least > Grammar::kMostTimes) bad("too long a text");
      part.most = none ? 0 : part.most == kNoEnd || most == kNoEnd ? kNoEnd : part.most * most;
      if (part.most > (int64_t{1} << 40)) part.most = kNoEnd;
      // a second repetition only of a group
      if (peek() == '*' || peek() == '+' || peek() == '?') bad("a repetition of a repetition");
    }
    return part;
  }

  Grammar& g_;
  std::string_view pattern_;
  Spelling spelling_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

int32_t spelled(Grammar& grammar, const CharacterRanges& ranges, Spelling spelling) {
  if (spelling == Spelling::plain) return grammar.chars(ranges);
  static const CharacterRanges escaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  const CharacterRanges all = complement(complement(normalized(ranges)));
  std::vector<int32_t> parts;
  if (CharacterRanges plain = common_ranges(all, complement(escaped)); !plain.empty())
    parts.push_back(grammar.chars(std::move(plain)));
  for (const auto& [first, last] : common_ranges(all, escaped))
    for (char32_t c = first; c <= last; ++c) parts.push_back(grammar.literal(json_escape_of(c)));
  return grammar.choice(std::move(parts));
}

int32_t spelled(Grammar& grammar, std::string_view text, Spelling spelling) {
  std::string out;
  for_each_character(text, [&](char32_t c, size_t, size_t) {
    if (spelling == Spelling::json && (c < 0x20 || c == '"' || c == '\\'))
      out += json_escape_of(c);
    else
      append_character(out, c);
  });
  return grammar.literal(out);
}

RegexPart add_regex(Grammar& grammar,
                    std::string_view pattern,
                    Spelling spelling,
                    bool whole,
                    const std::string& where) {
  return RegexReader(grammar, pattern, spelling, where).read(whole);
}

Grammar regex_grammar(std::string_view pattern, const std::string& where) {
  Grammar grammar;
  grammar.set_root(grammar.rule("root"));
  grammar.define(grammar.root(), add_regex(grammar, pattern, Spelling::plain, true, where).node);
  grammar.check(where);
  return grammar;
}

Grammar choice_grammar(const std::vector<std::string>& texts) {
  Grammar grammar;
  grammar.set_root(grammar.rule("root"));
  std::vector<int32_t> parts;
  for (const std::string& text : texts) parts.push_back(grammar.literal(text));
  grammar.define(grammar.root(), grammar.choice(std::move(parts)));
  grammar.check("choice");
  return grammar;
}

}  // namespace tessera::text
