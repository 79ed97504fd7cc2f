// Text to tree: a lexer and a recursive descent, one function per level of precedence.
#include <algorithm>
#include <charconv>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"

namespace tessera::convert {
namespace {

constexpr size_t kMaxText = 2000;
constexpr int kMaxExprDepth = 64;

using Node = Expr::Node;
using Kind = Node::Kind;
using NodePtr = std::unique_ptr<Node>;

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
}

struct Token {
  enum class Kind { end, number, string, name, symbol } kind = Kind::end;
  std::string text;
  size_t begin = 0, end = 0;
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view where) : text_(text), where_(where) { advance(); }

  NodePtr parse_all() {
    NodePtr node = conditional();
    if (token_.kind != Token::Kind::end) refuse("the end");
    return node;
  }

 private:
  // --- tokens ---------------------------------------------------------------------------------

  [[noreturn]] void refuse(std::string_view expected) {
    fail(ErrorKind::spec, where_, "\"{}\", column {}: found {}; expected {}", text_,
         token_.begin + 1, token_.kind == Token::Kind::end ? "the end" : "\"" + token_.text + "\"",
         expected);
  }

  void advance() {
    last_end_ = token_.end;
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
    token_ = {};
    token_.begin = at_;
    if (at_ < text_.size()) {
      const char c = text_[at_];
      if (is_digit(c))
        lex_number();
      else if (is_name_start(c))
        lex_name();
      else if (c == '\'')
        lex_string();
      else
        lex_symbol();
    }
    token_.end = at_;
  }

  void lex_number() {
    token_.kind = Token::Kind::number;
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      ++at_;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      size_t p = at_ + 1;
      if (p < text_.size() && (text_[p] == '-' || text_[p] == '+')) ++p;
      if (p < text_.size() && is_digit(text_[p])) {
        while (p < text_.size() && is_digit(text_[p])) ++p;
        at_ = p;
      }
    }
    token_.text = text_.substr(begin, at_ - begin);
  }

  void lex_name() {
    token_.kind = Token::Kind::name;
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    token_.text = text_.substr(begin, at_ - begin);
  }

  void lex_string() {
    token_.kind = Token::Kind::string;
    for (++at_; at_ < text_.size() && text_[at_] != '\''; ++at_) {
      if (text_[at_] == '\\') {
        if (++at_ == text_.size()) break;
        if (text_[at_] != '\'' && text_[at_] != '\\') {
          token_.text = text_.substr(at_ - 1, 2);
          refuse("\\' or \\\\ in a string");
        }
      }
      token_.text += text_[at_];
    }
    if (at_ >= text_.size())
      fail(ErrorKind::spec, where_, "\"{}\": a string has no end; expected '", text_);
    ++at_;
  }

  void lex_symbol() {
    token_.kind = Token::Kind::symbol;
    static constexpr std::string_view kTwo[] = {"==", "!=", "<=", ">=", "??", "//", "**"};
    for (const std::string_view two : kTwo)
      if (text_.substr(at_, 2) == two) {
        token_.text = two;
        at_ += 2;
        return;
      }
    token_.text = text_.substr(at_, 1);
    if (std::string_view("+-*/%<>()[]{},.:").find(text_[at_]) == std::string_view::npos)
      refuse("an expression");
    ++at_;
  }

  bool is_symbol(std::string_view text) const {
    return token_.kind == Token::Kind::symbol && token_.text == text;
  }
  bool is_word(std::string_view text) const {
    return token_.kind == Token::Kind::name && token_.text == text;
  }
  bool take_symbol(std::string_view text) {
    if (!is_symbol(text)) return false;
    advance();
    return true;
  }
  bool take_word(std::string_view text) {
    if (!is_word(text)) return false;
    advance();
    return true;
  }
  void expect(std::string_view symbol) {
    if (!take_symbol(symbol)) refuse("\"" + std::string(symbol) + "\"");
  }
  std::string expect_name(std::string_view what) {
    if (token_.kind != Token::Kind::name || is_keyword(token_.text)) refuse(what);
    std::string name = token_.text;
    advance();
    return name;
  }
  static bool is_keyword(std::string_view text) {
    static constexpr std::string_view kWords[] = {"if", "else", "for", "in", "and", "or", "not"};
    return std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords);
  }

  // --- trees ----------------------------------------------------------------------------------

  /// Nesting is bounded so that no text can exhaust the stack.
  struct Nested {
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxExprDepth)
        fail(ErrorKind::spec, parser_.where_, "an expression is nested deeper than {}",
             kMaxExprDepth);
    }
    ~Nested() { --parser_.depth_; }
    Parser& parser_;
  };

  NodePtr make(Kind kind, size_t begin, std::string text = "") {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->text = std::move(text);
    node->source = text_.substr(begin, last_end_ - begin);
    return node;
  }
  NodePtr make(Kind kind, size_t begin, std::string text, NodePtr a, NodePtr b = nullptr) {
    NodePtr node = make(kind, begin, std::move(text));
    node->kids.push_back(std::move(a));
    if (b) node->kids.push_back(std::move(b));
    return node;
  }

  /// a if condition else b
  NodePtr conditional() {
    const Nested nested(*this);
    const size_t begin = token_.begin;
    NodePtr value = disjunction();
    if (!take_word("if")) return value;
    NodePtr condition = disjunction();
    if (!take_word("else")) refuse("\"else\"");
    NodePtr otherwise = conditional();
    NodePtr node = make(Kind::choice, begin, "", std::move(condition), std::move(value));
    node->kids.push_back(std::move(otherwise));
    return node;
  }

  NodePtr disjunction() {
    const size_t begin = token_.begin;
    NodePtr left = conjunction();
    while (take_word("or")) {
      NodePtr right = conjunction();
      left = make(Kind::binary, begin, "or", std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr conjunction() {
    const size_t begin = token_.begin;
    NodePtr left = negation();
    while (take_word("and")) {
      NodePtr right = negation();
      left = make(Kind::binary, begin, "and", std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr negation() {
    const Nested nested(*this);
    const size_t begin = token_.begin;
    if (!take_word("not")) return comparison();
    NodePtr value = negation();
    return make(Kind::logical_not, begin, "", std::move(value));
  }

  NodePtr comparison() {
    const size_t begin = token_.begin;
    NodePtr left = coalesce();
    std::string op;
    for (const std::string_view symbol : {"==", "!=", "<=", ">=", "<", ">"})
      if (op.empty() && take_symbol(symbol)) op = symbol;
    if (op.empty() && take_word("in")) op = "in";
    if (op.empty() && is_word("not")) {
      advance();
      if (!take_word("in")) refuse("\"in\"");
      op = "not in";
    }
    if (op.empty()) return left;
    NodePtr right = coalesce();
    return make(Kind::binary, begin, op, std::move(left), std::move(right));
  }

  NodePtr coalesce() {
    const size_t begin = token_.begin;
    NodePtr left = sum();
    while (take_symbol("??")) {
      NodePtr right = sum();
      left = make(Kind::binary, begin, "??", std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr sum() {
    const size_t begin = token_.begin;
    NodePtr left = product();
    while (is_symbol("+") || is_symbol("-")) {
      const std::string op = token_.text;
      advance();
      NodePtr right = product();
      left = make(Kind::binary, begin, op, std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr product() {
    const size_t begin = token_.begin;
    NodePtr left = unary();
    while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
      const std::string op = token_.text;
      advance();
      NodePtr right = unary();
      left = make(Kind::binary, begin, op, std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr unary() {
    const Nested nested(*this);
    const size_t begin = token_.begin;
    if (take_symbol("-")) {
      NodePtr value = unary();
      return make(Kind::negate, begin, "", std::move(value));
    }
    NodePtr base = postfix();
    if (!take_symbol("**")) return base;
    NodePtr exponent = unary();
    return make(Kind::binary, begin, "**", std::move(base), std::move(exponent));
  }

  NodePtr postfix() {
    const size_t begin = token_.begin;
    NodePtr node = primary();
    for (;;) {
      if (take_symbol(".")) {
        // any word may be a key, keywords included
        if (token_.kind != Token::Kind::name) refuse("a key after \".\"");
        std::string key = token_.text;
        advance();
        node = make(Kind::member, begin, std::move(key), std::move(node));
      } else if (take_symbol("[")) {
        NodePtr index = conditional();
        expect("]");
        node = make(Kind::index, begin, "", std::move(node), std::move(index));
      } else {
        return node;
      }
    }
  }

  NodePtr primary() {
    const size_t begin = token_.begin;
    if (token_.kind == Token::Kind::number) return number();
    if (token_.kind == Token::Kind::string) {
      Json value = token_.text;
      advance();
      return literal(begin, std::move(value));
    }
    if (take_symbol("(")) {
      NodePtr node = conditional();
      expect(")");
      return node;
    }
    if (take_symbol("[")) return list(begin);
    if (take_symbol("{")) return object(begin);
    std::string name = expect_name("a value");
    if (name == "true") return literal(begin, true);
    if (name == "false") return literal(begin, false);
    if (name == "null") return literal(begin, nullptr);
    if (name == "absent") return literal(begin, absent());
    if (name == "infinity") return literal(begin, std::numeric_limits<double>::infinity());
    if (!take_symbol("(")) return make(Kind::name, begin, std::move(name));
    std::vector<NodePtr> arguments;
    while (!take_symbol(")")) {
      if (!arguments.empty()) expect(",");
      arguments.push_back(conditional());
    }
    NodePtr node = make(Kind::call, begin, std::move(name));
    for (NodePtr& argument : arguments) node->kids.push_back(std::move(argument));
    return node;
  }

  NodePtr literal(size_t begin, Json value) {
    NodePtr node = make(Kind::literal, begin);
    node->value = std::move(value);
    return node;
  }

  NodePtr number() {
    const size_t begin = token_.begin;
    const std::string text = token_.text;
    if (text.find_first_of(".eE") == std::string::npos) {
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size())
        refuse("an integer that fits 64 bits");
      advance();
      return literal(begin, value);
    }
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse("a finite number");
    advance();
    return literal(begin, value);
  }

  NodePtr list(size_t begin) {
    std::vector<NodePtr> items;
    if (!take_symbol("]")) {
      items.push_back(conditional());
      if (take_word("for")) return comprehension(begin, std::move(items.front()));
      while (!take_symbol("]")) {
        expect(",");
        items.push_back(conditional());
      }
    }
    NodePtr node = make(Kind::list, begin);
    for (NodePtr& item : items) node->kids.push_back(std::move(item));
    return node;
  }

  NodePtr comprehension(size_t begin, NodePtr item) {
    std::string variable = expect_name("the name of a loop variable");
    if (!take_word("in")) refuse("\"in\"");
    NodePtr over = disjunction();
    NodePtr condition;
    if (take_word("if")) condition = disjunction();
    expect("]");
    NodePtr node = make(Kind::loop, begin, std::move(variable), std::move(item), std::move(over));
    if (condition) node->kids.push_back(std::move(condition));
    return node;
  }

  NodePtr object(size_t begin) {
    std::vector<std::pair<std::string, NodePtr>> members;
    while (!take_symbol("}")) {
      if (!members.empty()) expect(",");
      if (token_.kind != Token::Kind::string && token_.kind != Token::Kind::name) refuse("a key");
      std::string key = token_.text;
      advance();
      for (const auto& [other, value] : members)
        if (other == key)
          fail(ErrorKind::spec, where_, "\"{}\": key \"{}\" appears twice", text_, key);
      expect(":");
      members.emplace_back(std::move(key), conditional());
    }
    NodePtr node = make(Kind::object, begin);
    for (auto& [key, value] : members) {
      node->keys.push_back(std::move(key));
      node->kids.push_back(std::move(value));
    }
    return node;
  }

  std::string_view text_;
  std::string_view where_;
  size_t at_ = 0;
  size_t last_end_ = 0;
  int depth_ = 0;
  Token token_;
};

/// The path of root.a.b, or "" when the node is no such chain.
std::string path_of(const Node& node, std::string_view root) {
  if (node.kind == Kind::name) return node.text == root ? "$" : "";
  if (node.kind == Kind::member) {
    const std::string path = path_of(*node.kids[0], root);
    if (path.empty()) return "";
    return path == "$" ? node.text : path + "." + node.text;
  }
  if (node.kind == Kind::index && node.kids[1]->kind == Kind::literal &&
      node.kids[1]->value.is_string()) {
    const std::string path = path_of(*node.kids[0], root);
    const auto& key = node.kids[1]->value.get_ref<const std::string&>();
    if (!path.empty()) return path == "$" ? key : path + "." + key;
  }
  return "";
}

void collect(const Node& node, std::string_view root, std::set<std::string>& paths) {
  if (const std::string path = path_of(node, root); !path.empty() && path != "$")
    paths.insert(path);
  for (const auto& kid : node.kids) collect(*kid, root, paths);
}

void collect(const Node& node, const std::string& where, ExprNames& names) {
  if (node.kind == Kind::name && !names.locals.contains(node.text))
    names.used.try_emplace(node.text, where);
  if (node.kind == Kind::call) names.called.try_emplace(node.text, where);
  if (node.kind == Kind::loop) names.bound.insert(node.text);
  names.joins = names.joins || (node.kind == Kind::binary && node.text == "+") ||
                (node.kind == Kind::call && (node.text == "replace" || node.text == "string"));
  if (node.kind == Kind::literal && node.value.is_string())
    names.texts.insert(node.value.get<std::string>());
  if (node.kind != Kind::loop) {
    for (const auto& kid : node.kids) collect(*kid, where, names);
    return;
  }
  // the list is outside the loop
  collect(*node.kids[1], where, names);
  const auto local = names.locals.insert(node.text);
  for (size_t i = 0; i < node.kids.size(); ++i)
    if (i != 1) collect(*node.kids[i], where, names);
  names.locals.erase(local);
}

}  // namespace

Expr Expr::parse(std::string_view text, std::string where) {
  if (text.size() > kMaxText)
    fail(ErrorKind::spec, where, "an expression has {} bytes; expected at most {}", text.size(),
         kMaxText);
  Expr expr;
  expr.text_ = text;
  expr.where_ = std::move(where);
  expr.root_ = Parser(expr.text_, expr.where_).parse_all();
  return expr;
}

void Expr::collect_paths(std::string_view root, std::set<std::string>& paths) const {
  collect(*root_, root, paths);
}

void Expr::collect_names(ExprNames& names) const {
  collect(*root_, where_, names);
}

}  // namespace tessera::convert
