#include "tessera/text/grammar/grammar.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr char32_t kLastCharacter = 0x10FFFF, kSurrogates = 0xD800, kBehindSurrogates = 0xE000;

}  // namespace

CharacterRanges normalized(CharacterRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharacterRanges out;
  for (const auto& [first, last] : ranges) {
    if (last < first) continue;
    if (!out.empty() && first <= out.back().second + 1)
      out.back().second = std::max(out.back().second, last);
    else
      out.emplace_back(first, last);
  }
  return out;
}

CharacterRanges complement(const CharacterRanges& ranges) {
  CharacterRanges all = ranges;
  all.emplace_back(kSurrogates, kBehindSurrogates - 1);
  CharacterRanges out;
  char32_t from = 0;
  for (const auto& [first, last] : normalized(std::move(all))) {
    if (first > from) out.emplace_back(from, first - 1);
    from = last + 1;
  }
  if (from <= kLastCharacter) out.emplace_back(from, kLastCharacter);
  return out;
}

// --- nodes

int32_t Grammar::add(Node node) {
  if (nodes_.size() >= kMostNodes)
    fail(ErrorKind::input, "grammar", "more than {} nodes; expected a smaller grammar or schema",
         kMostNodes);
  nodes_.push_back(std::move(node));
  return static_cast<int32_t>(nodes_.size() - 1);
}

int32_t Grammar::literal(std::string_view bytes) {
  if (bytes.empty()) return empty();
  return add({.kind = Kind::literal, .text = std::string(bytes)});
}

int32_t Grammar::chars(CharacterRanges ranges) {
  // no text has surrogates
  CharacterRanges apart = complement(complement(normalized(std::move(ranges))));
  if (apart.empty()) return never();
  return add({.kind = Kind::chars, .ranges = std::move(apart)});
}

int32_t Grammar::sequence(std::vector<int32_t> parts) {
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::sequence, .parts = std::move(parts)});
}

int32_t Grammar::choice(std::vector<int32_t> parts) {
  if (parts.empty()) return never();
  if (parts.size() == 1) return parts[0];
  return add({.kind = Kind::choice, .parts = std::move(parts)});
}

int32_t Grammar::repeat(int32_t part, int64_t least, int64_t most) {
  if (least == 1 && most == 1) return part;
  if (most == 0) return empty();
  if (most != kAnyTimes && most < least) return never();
  return add({.kind = Kind::repeat, .parts = {part}, .least = least, .most = most});
}

int32_t Grammar::token(std::vector<int32_t> ids, std::vector<std::string> texts, bool all_but) {
  return add({.kind = Kind::token,
              .all_but = all_but,
              .tokens = std::move(ids),
              .token_texts = std::move(texts)});
}

int32_t Grammar::call(int32_t rule) {
  return add({.kind = Kind::rule, .rule = rule});
}

int32_t Grammar::rule(std::string_view name) {
  const auto [found, fresh] =
      by_name_.try_emplace(std::string(name), static_cast<int32_t>(rules_.size()));
  if (fresh) rules_.push_back({std::string(name)});
  return found->second;
}

int32_t Grammar::fresh_rule(std::string_view name) {
  std::string own;
  for (const char c : name) own += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  if (own.empty()) own = "rule";
  std::string taken = own;
  for (size_t n = rules_.size(); by_name_.contains(taken); ++n)
    taken = fmt::format("{}-{}", own, n);
  return rule(taken);
}

void Grammar::define(int32_t rule, int32_t body) {
  rules_[static_cast<size_t>(rule)].body = body;
}

int32_t Grammar::define(std::string_view name, int32_t body) {
  const int32_t number = rule(name);
  define(number, body);
  return number;
}

/// With the automaton of Knuth, Morris and Pratt: a rule for each length of a marker prefix at the
/// end of the text.
int32_t Grammar::automaton(std::string_view marker, bool with_marker) {
  std::vector<char32_t> m;
  for_each_character(marker, [&](char32_t c, size_t, size_t) { m.push_back(c); });
  require(!m.empty(), "grammar", "an empty marker");
  const size_t n = m.size();
  std::vector<size_t> border(n + 1, 0);
  for (size_t i = 1, k = 0; i < n; ++i) {
    while (k > 0 && m[i] != m[k]) k = border[k];
    if (m[i] == m[k]) ++k;
    border[i + 1] = k;
  }
  std::vector<int32_t> states;
  for (size_t i = 0; i < n; ++i) states.push_back(fresh_rule("free"));
  for (size_t i = 0; i < n; ++i) {
    // the next characters of the marker, from here or from a border
    std::vector<std::pair<char32_t, size_t>> leads;
    for (size_t k = i;; k = border[k]) {
      if (std::none_of(leads.begin(), leads.end(),
                       [&](const auto& lead) { return lead.first == m[k]; }))
        leads.emplace_back(m[k], k + 1);
      if (k == 0) break;
    }
    std::vector<int32_t> parts;
    CharacterRanges known;
    for (const auto& [c, to] : leads) {
      known.emplace_back(c, c);
      if (to < n)
        parts.push_back(sequence({chars({{c, c}}), call(states[to])}));
      else if (with_marker)
        parts.push_back(chars({{c, c}}));
    }
    parts.push_back(sequence({chars(complement(normalized(known))), call(states[0])}));
    if (!with_marker) parts.push_back(empty());
    define(states[i], choice(std::move(parts)));
  }
  return call(states[0]);
}

int32_t Grammar::up_to(std::string_view marker) {
  return automaton(marker, true);
}

int32_t Grammar::without(std::string_view marker) {
  return automaton(marker, false);
}

// --- what follows from the whole

namespace {

/// Propagates a property: a node has it if all its parts have it, or any part (choices, and rules
/// by their bodies), or if it is in the initial set.
std::vector<bool> least_closure(const Grammar& g,
                                const std::function<bool(const Grammar::Node&)>& anyway) {
  const size_t n = g.nodes().size();
  std::vector<std::vector<int32_t>> above(n);  // users of a node
  std::vector<size_t> missing(n, 1);
  std::vector<int32_t> todo;
  std::vector<bool> of(n, false);
  const auto found = [&](size_t i) {
    if (of[i]) return;
    of[i] = true;
    todo.push_back(static_cast<int32_t>(i));
  };
  for (size_t i = 0; i < n; ++i) {
    const Grammar::Node& node = g.nodes()[i];
    if (node.kind == Grammar::Kind::sequence) missing[i] = node.parts.size();
    for (const int32_t part : node.parts)
      above[static_cast<size_t>(part)].push_back(static_cast<int32_t>(i));
    if (node.kind == Grammar::Kind::rule)
      if (const int32_t body = g.rules()[static_cast<size_t>(node.rule)].body; body >= 0)
        above[static_cast<size_t>(body)].push_back(static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < n; ++i)
    if (missing[i] == 0 || anyway(g.nodes()[i])) found(i);
  while (!todo.empty()) {
    const auto i = static_cast<size_t>(todo.back());
    todo.pop_back();
    for (const int32_t parent : above[i])
      if (--missing[static_cast<size_t>(parent)] == 0) found(static_cast<size_t>(parent));
  }
  return of;
}

}  // namespace

std::vector<bool> Grammar::nullable() const {
  return least_closure(
      *this, [](const Node& node) { return node.kind == Kind::repeat && node.least == 0; });
}

std::vector<bool> Grammar::productive() const {
  return least_closure(*this, [](const Node& node) {
    return node.kind == Kind::literal || node.kind == Kind::chars || node.kind == Kind::token ||
           (node.kind == Kind::repeat && node.least == 0);
  });
}

namespace {

/// Finds left recursion: a rule that reaches itself without a character in between.
class LeftRecursion {
 public:
  LeftRecursion(const Grammar& g, std::string_view where)
      : g_(g), where_(where), nullable_(g.nullable()), marks_(g.rules().size(), 0) {}

  void check() {
    for (size_t rule = 0; rule < marks_.size(); ++rule) visit(static_cast<int32_t>(rule));
  }

 private:
  /// The rules that a node may begin with.
  void first_rules(int32_t number, std::vector<int32_t>& out) const {
    std::vector<int32_t> todo = {number};
    while (!todo.empty()) {
      const Grammar::Node& node = g_.node(todo.back());
      todo.pop_back();
      if (node.kind == Grammar::Kind::rule) out.push_back(node.rule);
      for (const int32_t part : node.parts) {
        todo.push_back(part);
        if (node.kind == Grammar::Kind::sequence && !nullable_[static_cast<size_t>(part)]) break;
      }
    }
  }

  void visit(int32_t start) {
    // depth first with an explicit stack: grammars may be long chains
    struct Frame {
      int32_t rule;
      std::vector<int32_t> next;
      size_t at = 0;
    };
    std::vector<Frame> path;
    const auto enter = [&](int32_t rule) {
      marks_[static_cast<size_t>(rule)] = 1;
      path.push_back({rule, {}});
      first_rules(g_.rules()[static_cast<size_t>(rule)].body, path.back().next);
    };
    if (marks_[static_cast<size_t>(start)] == 0) enter(start);
    while (!path.empty()) {
      Frame& top = path.back();
      if (top.at == top.next.size()) {
        marks_[static_cast<size_t>(top.rule)] = 2;
        path.pop_back();
        continue;
      }
      const int32_t next = top.next[top.at++];
      if (marks_[static_cast<size_t>(next)] == 1) {
        std::string names;
        bool in = false;
        for (const Frame& frame : path) {
          in = in || frame.rule == next;
          if (in && names.size() < 200)
            names += g_.rules()[static_cast<size_t>(frame.rule)].name + " -> ";
        }
        fail(ErrorKind::input, where_,
             "left recursion: {}{}; expected a character before a rule comes back to itself "
             "(write a ::= b+ instead of a ::= a b | b)",
             names, g_.rules()[static_cast<size_t>(next)].name);
      }
      if (marks_[static_cast<size_t>(next)] == 0) enter(next);
    }
  }

  const Grammar& g_;
  std::string_view where_;
  std::vector<bool> nullable_;
  std::vector<uint8_t> marks_;  // 1: on the path, 2: done
};

}  // namespace

void Grammar::check(std::string_view where) const {
  if (rules_.empty() || root_ < 0 || static_cast<size_t>(root_) >= rules_.size())
    fail(ErrorKind::input, where, "no rule \"root\"; expected root ::= ...");
  for (const Rule& rule : rules_)
    if (rule.body < 0)
      fail(ErrorKind::input, where, "rule \"{}\" is used, but not defined; expected {} ::= ...",
           rule.name, rule.name);
  LeftRecursion(*this, where).check();
  const std::vector<bool> ends = productive();
  const Rule& root = rules_[static_cast<size_t>(root_)];
  if (!ends[static_cast<size_t>(root.body)])
    fail(ErrorKind::input, where, "no text fits rule \"{}\": it never comes to an end", root.name);
}

// --- as GBNF

namespace {

void append_gbnf_escaped(std::string& out, char32_t c, bool in_class) {
  const auto plain = [&](char32_t x) { return x == c; };
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c == '\\' || (!in_class && c == '"') ||
             (in_class && (plain('[') || plain(']') || plain('-') || plain('^')))) {
    out += '\\';
    append_character(out, c);
  } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
    out += fmt::format("\\x{:02X}", static_cast<uint32_t>(c));
  } else if (c > 0xFFFF) {
    out += fmt::format("\\U{:08X}", static_cast<uint32_t>(c));
  } else if (c >= 0xA0) {
    out += fmt::format("\\u{:04X}", static_cast<uint32_t>(c));
  } else {
    append_character(out, c);
  }
}

std::string gbnf_of(const Grammar& g, int32_t number, bool alone) {
  const Grammar::Node& node = g.node(number);
  std::string out;
  switch (node.kind) {
    case Grammar::Kind::never:
      fail(ErrorKind::input, "grammar", "a part that no text fits has no notation");
    case Grammar::Kind::literal:
      out = "\"";
      for_each_character(node.text,
                         [&](char32_t c, size_t, size_t) { append_gbnf_escaped(out, c, false); });
      return out + "\"";
    case Grammar::Kind::chars:
      out = "[";
      for (const auto& [first, last] : node.ranges) {
        append_gbnf_escaped(out, first, true);
        if (last == first) continue;
        if (last > first + 1) out += '-';
        append_gbnf_escaped(out, last, true);
      }
      return out + "]";
    case Grammar::Kind::sequence:
      if (node.parts.empty()) return "\"\"";
      for (const int32_t part : node.parts)
        out += (out.empty() ? "" : " ") + gbnf_of(g, part, false);
      return alone ? out : "(" + out + ")";
    case Grammar::Kind::choice:
      for (const int32_t part : node.parts)
        out += (out.empty() ? "" : " | ") + gbnf_of(g, part, false);
      return alone ? out : "(" + out + ")";
    case Grammar::Kind::repeat: {
      out = gbnf_of(g, node.parts[0], false);
      // the quantifier of a repetition needs a group
      if (g.node(node.parts[0]).kind == Grammar::Kind::repeat) out = "(" + out + ")";
      const bool any = node.most == Grammar::kAnyTimes;
      if (any && node.least <= 1) return out + (node.least == 0 ? "*" : "+");
      if (node.least == 0 && node.most == 1) return out + "?";
      if (any) return out + fmt::format("{{{},}}", node.least);
      if (node.least == node.most) return out + fmt::format("{{{}}}", node.least);
      return out + fmt::format("{{{},{}}}", node.least, node.most);
    }
    case Grammar::Kind::rule:
      return g.rules()[static_cast<size_t>(node.rule)].name;
    case Grammar::Kind::token: {
      std::vector<std::string> all;
      for (const int32_t id : node.tokens) all.push_back(fmt::format("<[{}]>", id));
      for (const std::string& text : node.token_texts) {
        if (!text.starts_with('<') || text.find('>') != text.size() - 1)
          fail(ErrorKind::input, "grammar", "token \"{}\" has no notation; expected its id", text);
        all.push_back(text);
      }
      if (node.all_but && all.size() != 1)
        fail(ErrorKind::input, "grammar", "all but {} tokens have no notation", all.size());
      for (const std::string& one : all) out += (out.empty() ? "" : " | ") + one;
      if (node.all_but) return "!" + out;
      return all.size() > 1 ? "(" + out + ")" : out;
    }
  }
  return out;
}

}  // namespace

std::string Grammar::to_gbnf() const {
  std::string out;
  const auto write = [&](const Rule& rule) {
    out += fmt::format("{} ::= {}\n", rule.name, gbnf_of(*this, rule.body, true));
  };
  if (rules_.empty()) return out;
  write(rules_[static_cast<size_t>(root_)]);
  for (size_t r = 0; r < rules_.size(); ++r)
    if (static_cast<int32_t>(r) != root_) write(rules_[r]);
  return out;
}

}  // namespace tessera::text
