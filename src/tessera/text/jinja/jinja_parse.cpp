#include <algorithm>
#include <charconv>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/text/jinja/jinja_node.h"
#include "tessera/text/utf8.h"

namespace tessera::text::jinja {
namespace {

constexpr size_t kMaxSource = size_t{256} << 10;
constexpr int kMaxNesting = 64, kMaxTree = 400;

enum class TokenKind {
  data,
  begin_output,
  end_output,
  begin_block,
  end_block,
  name,
  string,
  integer,
  real,
  sign,
  end
};

struct Token {
  TokenKind kind;
  std::string text;
  int line = 0;
};

bool is_name_byte(char c, bool first) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (!first && c >= '0' && c <= '9');
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// Text and tags, with the white space around tags taken out as trim_blocks and lstrip_blocks do.
class Lexer {
 public:
  Lexer(std::string source, const std::string& where) : source_(std::move(source)), where_(where) {}

  std::vector<Token> all() {
    while (at_ < source_.size()) data();
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorKind::file, where_, "chat template, line {}: {}", line_, what);
  }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool here(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void skip(size_t n) {
    for (size_t i = 0; i < n && at_ < source_.size(); ++i, ++at_)
      if (source_[at_] == '\n') ++line_;
  }

  void data() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) tag = source_.size();
      if (tag == source_.size()) break;
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    std::string text = source_.substr(at_, tag - at_);
    const bool is_tag = tag < source_.size();
    const char sign = is_tag && tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    if (is_tag && sign == '-') {
      while (!text.empty() && is_space(text.back())) text.pop_back();
    } else if (is_tag && sign != '+' && source_[tag + 1] != '{') {
      // a tag alone on its line, after white space, removes that
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || line_starts_) &&
          std::all_of(text.begin() + static_cast<std::ptrdiff_t>(line), text.end(), is_space))
        text.resize(line);
    }
    if (!text.empty()) push(TokenKind::data, std::move(text));
    skip(tag - at_);
    if (!is_tag) return;
    const char kind = source_[tag + 1];
    skip(2);
    if (at_ < source_.size() && (source_[at_] == '-' || (source_[at_] == '+'))) skip(1);
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    push(kind == '{' ? TokenKind::begin_output : TokenKind::begin_block, "");
    inside(kind == '{');
  }

  void end_tag(bool strip, bool keep, bool block) {
    line_starts_ = false;
    if (strip) {
      while (at_ < source_.size() && is_space(source_[at_])) {
        line_starts_ = source_[at_] == '\n';
        skip(1);
      }
    } else if (block && !keep && here("\n")) {
      skip(1);
      line_starts_ = true;
    }
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) wrong("a comment without #}");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    skip(end + 2 - at_);
    end_tag(sign == '-', sign == '+', true);
  }

  bool raw() {
    size_t at = at_;
    while (at < source_.size() && is_space(source_[at])) ++at;
    if (source_.compare(at, 3, "raw") != 0) return false;
    at += 3;
    while (at < source_.size() && is_space(source_[at])) ++at;
    const bool strip = source_.compare(at, 1, "-") == 0;
    if (strip) ++at;
    if (source_.compare(at, 2, "%}") != 0) return false;
    skip(at + 2 - at_);
    end_tag(strip, false, true);
    for (size_t end = at_; (end = source_.find("{%", end)) != std::string::npos; end += 2) {
      size_t word = end + 2;
      const bool left = source_.compare(word, 1, "-") == 0;
      if (left) ++word;
      while (word < source_.size() && is_space(source_[word])) ++word;
      if (source_.compare(word, 6, "endraw") != 0) continue;
      const size_t close = source_.find("%}", word);
      if (close == std::string::npos) break;
      std::string text = source_.substr(at_, end - at_);
      while (left && !text.empty() && is_space(text.back())) text.pop_back();
      if (!text.empty()) push(TokenKind::data, std::move(text));
      const bool right = source_[close - 1] == '-';
      skip(close + 2 - at_);
      end_tag(right, false, true);
      return true;
    }
    wrong("raw without endraw");
  }

  void inside(bool output) {
    const std::string_view close = output ? "}}" : "%}";
    int open = 0;  // braces of mappings within
    for (;;) {
      while (at_ < source_.size() && is_space(source_[at_])) skip(1);
      if (at_ >= source_.size()) wrong(fmt::format("a tag without {}", close));
      const bool strip = here(std::string("-") + std::string(close));
      const bool keep = !output && here("+%}");
      if (open == 0 && (strip || keep || here(close))) {
        skip(close.size() + (strip || keep ? 1 : 0));
        push(output ? TokenKind::end_output : TokenKind::end_block, "");
        return end_tag(strip, keep, !output);
      }
      const char c = source_[at_];
      if (is_name_byte(c, true)) {
        size_t end = at_;
        while (end < source_.size() && is_name_byte(source_[end], false)) ++end;
        take(TokenKind::name, end);
      } else if (c >= '0' && c <= '9') {
        number();
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        sign(open);
      }
    }
  }

  void take(TokenKind kind, size_t end) {
    push(kind, source_.substr(at_, end - at_));
    skip(end - at_);
  }

  void number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && ((source_[end] >= '0' && source_[end] <= '9'))) ++end;
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && source_[end + 1] >= '0' &&
        source_[end + 1] <= '9') {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t after = end + 1;
      if (after < source_.size() && (source_[after] == '+' || source_[after] == '-')) ++after;
      if (after < source_.size() && source_[after] >= '0' && source_[after] <= '9') {
        real = true;
        end = after;
        digits();
      }
    }
    take(real ? TokenKind::real : TokenKind::integer, end);
  }

  void string(char quote) {
    std::string out;
    const int line = line_;
    skip(1);
    for (;; skip(1)) {
      if (at_ >= source_.size()) wrong("a string without its end");
      const char c = source_[at_];
      if (c == quote) break;
      if (c != '\\') {
        out += c;
        continue;
      }
      skip(1);
      if (at_ >= source_.size()) wrong("a string without its end");
      escape(out);
    }
    skip(1);
    tokens_.push_back({TokenKind::string, std::move(out), line});
  }

  void escape(std::string& out) {
    const char c = source_[at_];
    constexpr std::string_view kNames = "nrtbfav0\\'\"", kValues("\n\r\t\b\f\a\v\0\\'\"", 11);
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      out += kValues[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t point = 0;
      const char* begin = source_.data() + at_ + 1;
      if (at_ + digits >= source_.size()) wrong("half an escape");
      const auto [end, error] = std::from_chars(begin, begin + digits, point, 16);
      if (error != std::errc() || end != begin + digits || point > 0x10FFFF ||
          (point >= 0xD800 && point < 0xE000))
        wrong("an escape that is no character");
      append_character(out, point);
      skip(digits);
    } else if (c != '\n') {
      out += '\\';
      out += c;
    }
  }

  void sign(int& open) {
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"})
      if (here(two)) return take(TokenKind::sign, at_ + 2);
    const char c = source_[at_];
    if (std::string_view("+-*/%<>=~|.,:()[]{}").find(c) == std::string_view::npos)
      wrong(fmt::format("the character {:#x}", static_cast<uint8_t>(c)));
    if (c == '{' || c == '(' || c == '[') ++open;
    if ((c == '}' || c == ')' || c == ']') && open > 0) --open;
    take(TokenKind::sign, at_ + 1);
  }

  std::string source_;
  const std::string& where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
};

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& where)
      : tokens_(std::move(tokens)), where_(where) {}

  NodePointer all() {
    NodePointer root = body({});
    if (token().kind != TokenKind::end) wrong("text after the end");
    return root;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorKind::file, where_, "chat template, line {}: {}", token().line, what);
  }
  const Token& token(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(std::string_view sign, size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::sign && token(ahead).text == sign;
  }
  bool is_word(std::string_view word, size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::name && token(ahead).text == word;
  }
  bool skip(std::string_view sign) {
    if (!is(sign)) return false;
    ++at_;
    return true;
  }
  bool skip_word(std::string_view word) {
    if (!is_word(word)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view sign) {
    if (!skip(sign))
      wrong(fmt::format("\"{}\"; expected \"{}\"", token().text.substr(0, 40), sign));
  }
  void expect_word(std::string_view word) {
    if (!skip_word(word)) wrong(fmt::format("expected \"{}\"", word));
  }
  void expect_end() {
    if (token().kind != TokenKind::end_block)
      wrong(fmt::format("\"{}\"; expected the end of the tag", token().text.substr(0, 40)));
    ++at_;
  }
  std::string word() {
    if (token().kind != TokenKind::name) wrong("expected a name");
    return tokens_[at_++].text;
  }

  template <class... Children>
  NodePointer make(Kind kind, std::string name, Children... children) {
    auto node = std::make_unique<Node>(Node{.kind = kind, .name = std::move(name)});
    node->line = token().line;
    (add(*node, std::move(children)), ...);
    return node;
  }
  void add(Node& node, NodePointer child) {
    if (child) node.depth = std::max(node.depth, child->depth + 1);
    if (node.depth > kMaxTree) wrong(fmt::format("more than {} levels", kMaxTree));
    node.children.push_back(std::move(child));
  }
  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.nesting_ > kMaxNesting)
        parser.wrong(fmt::format("nested more than {} deep", kMaxNesting));
    }
    ~Nesting() { --parser.nesting_; }
    Parser& parser;
  };

  // statements

  /// Parses up to a tag that begins with one of `ends`; its "{%" is consumed.
  NodePointer body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    NodePointer out = make(Kind::body, "");
    for (;;) {
      const Token& next = token();
      if (next.kind == TokenKind::end) {
        if (ends.size() > 0) wrong(fmt::format("expected \"{}\"", *(ends.end() - 1)));
        return out;
      }
      ++at_;
      if (next.kind == TokenKind::data) {
        NodePointer data = make(Kind::data, "");
        data->constant = make_text(next.text);
        add(*out, std::move(data));
      } else if (next.kind == TokenKind::begin_output) {
        add(*out, make(Kind::output, "", tuple()));
        if (token().kind != TokenKind::end_output)
          wrong(fmt::format("\"{}\"; expected \"}}}}\"", token().text.substr(0, 40)));
        ++at_;
      } else {
        for (const std::string_view end : ends)
          if (is_word(end)) return out;
        add(*out, statement());
      }
    }
  }

  NodePointer statement() {
    const std::string name = word();
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) wrong(name + " outside a loop");
      expect_end();
      return make(name == "break" ? Kind::break_ : Kind::continue_, "");
    }
    if (name == "generation") {  // marks training targets
      expect_end();
      NodePointer inner = body({"endgeneration"});
      ++at_;
      expect_end();
      return make(Kind::generation, "", std::move(inner));
    }
    if (name == "filter") {
      NodePointer chain = filters(nullptr, true);
      expect_end();
      NodePointer inner = body({"endfilter"});
      ++at_;
      expect_end();
      return make(Kind::filter_block, "", std::move(inner), std::move(chain));
    }
    wrong(fmt::format(
        "the tag \"{}\"; expected if, for, set, macro, filter, generation, break or continue",
        name.substr(0, 40)));
  }

  NodePointer if_statement() {
    NodePointer out = make(Kind::if_, "");
    add(*out, tuple());
    expect_end();
    for (;;) {
      add(*out, body({"elif", "else", "endif"}));
      const std::string end = word();
      if (end == "elif") add(*out, tuple());
      expect_end();
      if (end == "endif") return out;
      if (end == "elif") continue;
      add(*out, body({"endif"}));
      ++at_;
      expect_end();
      return out;
    }
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool closed = skip("(");
    do names.push_back(word());
    while (skip(","));
    if (closed) expect(")");
    return names;
  }

  NodePointer for_statement() {
    NodePointer out = make(Kind::for_, "");
    out->names = targets();
    expect_word("in");
    add(*out, tuple(false));
    add(*out, skip_word("if") ? expression() : nullptr);
    if (is_word("recursive")) wrong("a recursive loop, which is not supported");
    expect_end();
    ++loops_;
    add(*out, body({"else", "endfor"}));
    --loops_;
    if (word() == "else") {
      expect_end();
      add(*out, body({"endfor"}));
      ++at_;
    }
    expect_end();
    return out;
  }

  NodePointer set_statement() {
    NodePointer out = make(Kind::set, "");
    out->names = targets();
    if (skip(".")) {
      if (out->names.size() != 1) wrong("an attribute among several targets");
      out->name = word();
    }
    if (skip("=")) {
      add(*out, tuple());
      expect_end();
      return out;
    }
    if (out->names.size() != 1) wrong("a block for several names");
    out->kind = Kind::set_block;
    NodePointer chain = is("|") ? filters(nullptr, false) : nullptr;
    expect_end();
    add(*out, body({"endset"}));
    add(*out, std::move(chain));
    ++at_;
    expect_end();
    return out;
  }

  NodePointer macro_statement() {
    NodePointer out = make(Kind::macro, word(), NodePointer());
    expect("(");
    while (!is(")")) {
      out->names.push_back(word());
      if (skip("="))
        add(*out, expression());
      else
        add(*out, nullptr);
      if (!skip(",")) break;
    }
    expect(")");
    expect_end();
    const int loops = std::exchange(loops_, 0);
    const bool outer_varargs = std::exchange(varargs_, false);
    const bool outer_kwargs = std::exchange(kwargs_, false);
    NodePointer inner = body({"endmacro"});
    loops_ = loops;
    const auto parameter = [&](const char* name) {
      return std::find(out->names.begin(), out->names.end(), name) != out->names.end();
    };
    out->varargs = varargs_ && !parameter("varargs");
    out->kwargs = kwargs_ && !parameter("kwargs");
    varargs_ = varargs_ || outer_varargs;
    kwargs_ = kwargs_ || outer_kwargs;
    ++at_;
    expect_end();
    out->depth = std::max(out->depth, inner->depth + 1);
    out->children[0] = std::move(inner);
    return out;
  }

  // expressions, by increasing precedence

  /// A tuple, if there are commas.
  NodePointer tuple(bool conditions = true) {
    NodePointer first = conditions ? expression() : or_();
    if (!is(",")) return first;
    NodePointer out = make(Kind::tuple, "", std::move(first));
    while (skip(",")) {
      if (token().kind == TokenKind::end_block || token().kind == TokenKind::end_output || is(")"))
        break;
      add(*out, conditions ? expression() : or_());
    }
    return out;
  }

  NodePointer expression() {
    const Nesting nesting(*this);
    NodePointer out = or_();
    while (skip_word("if")) {
      NodePointer condition = or_();
      NodePointer otherwise = skip_word("else") ? expression() : nullptr;
      out = make(Kind::condition, "", std::move(out), std::move(condition), std::move(otherwise));
    }
    return out;
  }
  NodePointer or_() {
    NodePointer out = and_();
    while (skip_word("or")) out = make(Kind::binary, "or", std::move(out), and_());
    return out;
  }
  NodePointer and_() {
    NodePointer out = not_();
    while (skip_word("and")) out = make(Kind::binary, "and", std::move(out), not_());
    return out;
  }
  NodePointer not_() {
    const Nesting nesting(*this);
    if (skip_word("not")) return make(Kind::unary, "not", not_());
    return comparison();
  }
  NodePointer comparison() {
    NodePointer first = sum();
    NodePointer out = nullptr;
    for (;;) {
      std::string sign;
      for (const std::string_view s : {"==", "!=", "<=", ">=", "<", ">"})
        if (is(s)) sign = s;
      if (is_word("in")) sign = "in";
      if (is_word("not") && is_word("in", 1)) {
        sign = "not in";
        ++at_;
      }
      if (sign.empty()) return out ? std::move(out) : std::move(first);
      ++at_;
      if (!out) out = make(Kind::compare, "", std::move(first));
      out->names.push_back(sign);
      add(*out, sum());
    }
  }
  NodePointer sum() {
    NodePointer out = joined();
    while (is("+") || is("-")) {
      const std::string sign = tokens_[at_++].text;
      out = make(Kind::binary, sign, std::move(out), joined());
    }
    return out;
  }
  NodePointer joined() {
    NodePointer out = product();
    while (skip("~")) out = make(Kind::binary, "~", std::move(out), product());
    return out;
  }
  NodePointer product() {
    NodePointer out = power();
    while (is("*") || is("/") || is("//") || is("%")) {
      const std::string sign = tokens_[at_++].text;
      out = make(Kind::binary, sign, std::move(out), power());
    }
    return out;
  }
  NodePointer power() {
    NodePointer out = unary(true);
    if (is("**")) wrong("a power, which is not supported");
    return out;
  }
  NodePointer unary(bool with_filters) {
    const Nesting nesting(*this);
    NodePointer out;
    if (is("-") || is("+")) {
      const std::string sign = tokens_[at_++].text;
      out = make(Kind::unary, sign, unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    if (with_filters) out = filters(std::move(out), false);
    return out;
  }

  NodePointer constant(Value value) {
    NodePointer out = make(Kind::constant, "");
    out->constant = std::move(value);
    return out;
  }

  NodePointer primary() {
    const Token next = token();
    ++at_;
    if (next.kind == TokenKind::name) {
      const std::string& n = next.text;
      if (n == "true" || n == "True" || n == "false" || n == "False")
        return constant({n == "true" || n == "True"});
      if (n == "none" || n == "None") return constant(make_none());
      varargs_ = varargs_ || n == "varargs";
      kwargs_ = kwargs_ || n == "kwargs";
      return make(Kind::name, n);
    }
    if (next.kind == TokenKind::string) {
      std::string all = next.text;
      while (token().kind == TokenKind::string) all += tokens_[at_++].text;
      return constant(make_text(all));
    }
    if (next.kind == TokenKind::integer) {
      int64_t value = 0;
      const auto [end, error] =
          std::from_chars(next.text.data(), next.text.data() + next.text.size(), value);
      if (error != std::errc()) wrong("a number beyond 64 bits");
      return constant({value});
    }
    if (next.kind == TokenKind::real) return constant({std::strtod(next.text.c_str(), nullptr)});
    if (next.kind == TokenKind::sign && next.text == "(") {
      if (skip(")")) return make(Kind::tuple, "");
      NodePointer out = tuple();
      expect(")");
      return out;
    }
    if (next.kind == TokenKind::sign && next.text == "[") {
      NodePointer out = make(Kind::list, "");
      while (!is("]")) {
        add(*out, expression());
        if (!skip(",")) break;
      }
      expect("]");
      return out;
    }
    if (next.kind == TokenKind::sign && next.text == "{") {
      NodePointer out = make(Kind::dict, "");
      while (!is("}")) {
        add(*out, expression());
        expect(":");
        add(*out, expression());
        if (!skip(",")) break;
      }
      expect("}");
      return out;
    }
    --at_;
    wrong(fmt::format("\"{}\"; expected a value", next.text.substr(0, 40)));
  }

  NodePointer postfix(NodePointer out) {
    for (;;) {
      if (skip(".")) {
        if (token().kind == TokenKind::integer) {
          out = make(Kind::item, "", std::move(out), primary());
        } else {
          out = make(Kind::attribute, word(), std::move(out));
        }
      } else if (skip("[")) {
        out = subscript(std::move(out));
      } else if (is("(")) {
        out = make(Kind::call, "", std::move(out));
        arguments(*out);
      } else {
        return out;
      }
    }
  }

  NodePointer subscript(NodePointer of) {
    NodePointer parts[3];
    bool slice = false;
    if (!is(":")) parts[0] = expression();
    for (size_t i = 1; i < 3 && skip(":"); ++i) {
      slice = true;
      if (!is(":") && !is("]")) parts[i] = expression();
    }
    expect("]");
    if (slice)
      return make(Kind::slice, "", std::move(of), std::move(parts[0]), std::move(parts[1]),
                  std::move(parts[2]));
    return make(Kind::item, "", std::move(of), std::move(parts[0]));
  }

  void arguments(Node& call) {
    expect("(");
    while (!is(")")) {
      if (is("*") || is("**")) wrong("unpacked arguments, which are not supported");
      if (token().kind == TokenKind::name && is("=", 1)) {
        const std::string name = word();
        ++at_;
        add(call, make(Kind::argument, name, expression()));
      } else {
        add(call, expression());
      }
      if (!skip(",")) break;
    }
    expect(")");
  }

  /// "| name(...)" and "is name ..." after a value; `begun`: the first without its "|".
  NodePointer filters(NodePointer out, bool begun) {
    for (;;) {
      if (begun || skip("|")) {
        begun = false;
        std::string name = word();
        while (skip(".")) name += "." + word();
        out = make(Kind::filter, name, std::move(out));
        if (is("(")) arguments(*out);
      } else if (is_word("is")) {
        ++at_;
        const bool negated = skip_word("not");
        NodePointer test = make(Kind::test, word(), std::move(out));
        const bool value = token().kind == TokenKind::string ||
                           token().kind == TokenKind::integer || token().kind == TokenKind::real ||
                           is("[") || is("{") ||
                           (token().kind == TokenKind::name && !is_word("else") && !is_word("or") &&
                            !is_word("and") && !is_word("is") && !is_word("if") && !is_word("in") &&
                            !is_word("not"));
        if (is("("))
          arguments(*test);
        else if (value)
          add(*test, postfix(primary()));
        out = negated ? make(Kind::unary, "not", std::move(test)) : std::move(test);
      } else if (out && is("(")) {
        out = make(Kind::call, "", std::move(out));
        arguments(*out);
      } else {
        return out;
      }
    }
  }

  std::vector<Token> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  bool varargs_ = false, kwargs_ = false;  // used since the beginning of the macro
};

}  // namespace

NodePointer parse(std::string_view source, const std::string& where) {
  if (source.size() > kMaxSource)
    fail(ErrorKind::file, where, "a chat template of {} bytes; at most {}", source.size(),
         kMaxSource);
  // universal newlines as in Python, and the last line end is removed
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return Parser(Lexer(std::move(text), where).all(), where).all();
}

}  // namespace tessera::text::jinja
