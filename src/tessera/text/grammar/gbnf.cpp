// The GBNF parser.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/grammar/grammar.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

class GbnfReader {
 public:
  GbnfReader(std::string_view source, const std::string& where) : source_(source), where_(where) {}

  Grammar read() {
    if (source_.size() > Grammar::kMostBytes)
      fail(ErrorKind::input, where_, "{} bytes; expected at most {}", source_.size(),
           Grammar::kMostBytes);
    if (!is_valid_utf8(source_)) fail(ErrorKind::input, where_, "no UTF-8; expected a grammar");
    g_.set_root(g_.rule("root"));
    skip(true);
    while (at_ < source_.size()) {
      const std::string name = this->name();
      const size_t line = line_;
      skip(false);
      if (!take("::=")) bad("expected ::= after the name of a rule");
      const int32_t rule = g_.rule(name);
      if (g_.rules()[static_cast<size_t>(rule)].body >= 0) {
        line_ = line;
        bad(fmt::format("rule \"{}\" is defined twice", name));
      }
      skip(true);
      g_.define(rule, choice(0));
      if (at_ < source_.size() && source_[at_] != '\n') bad("expected the end of the line");
      skip(true);
    }
    g_.check(where_);
    return std::move(g_);
  }

 private:
  [[noreturn]] void bad(const std::string& what) const {
    std::string found = "the end";
    if (at_ < source_.size()) {
      const size_t end = source_.find('\n', at_);
      found = "\"" + to_valid_utf8(source_.substr(at_, std::min<size_t>(end - at_, 20))) + "\"";
      if (source_[at_] == '\n') found = "the end of the line";
    }
    fail(ErrorKind::input, where_, "line {}: {}; found {}", line_, what, found);
  }

  char peek() const { return at_ < source_.size() ? source_[at_] : '\0'; }
  bool take(std::string_view text) {
    if (!source_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  /// Skips white space and comments; line ends too where they have no meaning.
  void skip(bool lines) {
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (c == '#') {
        at_ = std::min(source_.find('\n', at_), source_.size());
      } else if (c == ' ' || c == '\t' || c == '\r') {
        ++at_;
      } else if (c == '\n' && lines) {
        ++at_;
        ++line_;
      } else {
        return;
      }
    }
  }

  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string name() {
    const size_t begin = at_;
    while (at_ < source_.size() && in_name(source_[at_])) ++at_;
    if (begin == at_) bad("expected the name of a rule");
    return std::string(source_.substr(begin, at_ - begin));
  }

  int32_t choice(int depth) {
    if (depth > Grammar::kMostDepth) bad(fmt::format("groups deeper than {}", Grammar::kMostDepth));
    std::vector<int32_t> parts = {sequence(depth)};
    for (;;) {
      if (depth == 0) {  // a line that begins with | continues the rule
        const size_t at = at_, line = line_;
        skip(true);
        if (peek() != '|') {
          at_ = at;
          line_ = line;
        }
      }
      if (!take("|")) return g_.choice(std::move(parts));
      skip(true);
      parts.push_back(sequence(depth));
    }
  }

  int32_t sequence(int depth) {
    std::vector<int32_t> parts;
    for (;;) {
      const char c = peek();
      int32_t part = 0;
      if (c == '"') {
        part = literal();
      } else if (c == '[') {
        part = klass();
      } else if (c == '.') {
        ++at_;
        part = g_.chars({{0, 0x10FFFF}});
      } else if (c == '(') {
        ++at_;
        skip(true);
        part = choice(depth + 1);
        skip(true);
        if (!take(")")) bad("expected )");
      } else if (c == '<' || c == '!') {
        part = token();
      } else if (in_name(c)) {
        part = g_.call(g_.rule(name()));
      } else {
        break;
      }
      skip(depth > 0);
      parts.push_back(repeated(part, depth));
    }
    return g_.sequence(std::move(parts));
  }

  int32_t repeated(int32_t part, int depth) {
    for (int times = 0;; ++times) {
      constexpr int kMost = 8;
      if (times > kMost) bad("too many repetitions of one part");
      if (take("*"))
        part = g_.repeat(part, 0, Grammar::kAnyTimes);
      else if (take("+"))
        part = g_.repeat(part, 1, Grammar::kAnyTimes);
      else if (take("?"))
        part = g_.optional(part);
      else if (take("{"))
        part = counted(part);
      else
        return part;
      skip(depth > 0);
    }
  }

  int64_t number() {
    int64_t n = 0;
    const size_t begin = at_;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      n = 10 * n + (peek() - '0');
      if (n > Grammar::kMostTimes)
        bad(fmt::format("a repetition of more than {}", Grammar::kMostTimes));
    }
    if (at_ == begin) bad("expected a number");
    return n;
  }

  int32_t counted(int32_t part) {
    skip(false);
    const int64_t least = number();
    int64_t most = least;
    skip(false);
    if (take(",")) {
      skip(false);
      most = peek() == '}' ? Grammar::kAnyTimes : number();
      skip(false);
    }
    if (!take("}")) bad("expected }");
    if (most != Grammar::kAnyTimes && most < least) bad("a repetition {m,n} with n below m");
    return g_.repeat(part, least, most);
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) bad(fmt::format("expected {} hexadecimal digits", digits));
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) bad("no character has this code");
    return value;
  }

  char32_t character() {
    if (at_ >= source_.size() || peek() == '\n') bad("a text that does not end on its line");
    if (peek() != '\\') {
      const size_t n = character_length(source_, at_);
      const char32_t c = code_point_at(source_, at_, n);
      at_ += n;
      return c;
    }
    ++at_;
    const char c = peek();
    if (c == 'x' || c == 'u' || c == 'U') {
      ++at_;
      return hex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    }
    constexpr std::string_view kNamed = "nrt\\\"[]-^/'";
    constexpr std::string_view kMeant = "\n\r\t\\\"[]-^/'";
    const size_t at = c == '\0' ? std::string_view::npos : kNamed.find(c);
    if (at == std::string_view::npos)
      bad("expected \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xXX \\uXXXX or \\UXXXXXXXX");
    ++at_;
    return static_cast<char32_t>(kMeant[at]);
  }

  int32_t literal() {
    ++at_;
    std::string text;
    while (peek() != '"' || at_ >= source_.size()) append_character(text, character());
    ++at_;
    return g_.literal(text);
  }

  int32_t klass() {
    ++at_;
    const bool others = take("^");
    CharacterRanges ranges;
    while (peek() != ']' || at_ >= source_.size()) {
      const char32_t first = character();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < source_.size() && source_[at_ + 1] != ']') {
        ++at_;
        last = character();
        if (last < first) bad("a range whose end is before its beginning");
      }
      ranges.emplace_back(first, last);
    }
    ++at_;
    ranges = normalized(std::move(ranges));
    return g_.chars(others ? complement(ranges) : ranges);
  }

  int32_t token() {
    const bool all_but = take("!");
    if (peek() != '<') bad("expected a token, as in <[7]> or <think>");
    const size_t end = source_.find_first_of(">\n", at_);
    if (end == std::string_view::npos || source_[end] != '>') bad("a token without its >");
    const std::string text(source_.substr(at_, end + 1 - at_));
    if (!text.starts_with("<[")) {
      at_ = end + 1;
      return g_.token({}, {text}, all_but);
    }
    at_ += 2;
    constexpr int64_t kMostId = INT32_MAX;
    int64_t id = 0;
    const size_t begin = at_;
    for (; peek() >= '0' && peek() <= '9' && id <= kMostId; ++at_) id = 10 * id + (peek() - '0');
    if (begin == at_ || id > kMostId || !take("]>")) bad("expected the id of a token, as in <[7]>");
    return g_.token({static_cast<int32_t>(id)}, {}, all_but);
  }

  std::string_view source_;
  const std::string& where_;
  Grammar g_;
  size_t at_ = 0, line_ = 1;
};

}  // namespace

Grammar parse_gbnf(std::string_view source, const std::string& where) {
  return GbnfReader(source, where).read();
}

}  // namespace tessera::text
