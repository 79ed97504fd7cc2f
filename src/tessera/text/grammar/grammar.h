// Context-free grammars over text: the languages that constrained answers are held to. Written as
// GBNF (the notation of llama.cpp), as a regular expression, built from a JSON schema
// (json_schema.h), or put together here.
//
//   root  ::= "{" pair ("," pair)* "}"      # alternatives |, groups ( ), comments
//   pair  ::= [a-z]+ ":" [0-9]{1,3}         # classes, . for any character, * + ? {m} {m,} {m,n}
//   think ::= <think> .* <[7]> !<[8]>       # tokens by text or id, and all but one
//
// A name is letters, digits, "-" and "_"; "root" is where a text begins. Literals and classes know
// \n \r \t \\ \" \[ \] \- \^ \/ \xXX \uXXXX \UXXXXXXXX (code points). A rule ends where a line
// does, outside of parentheses, unless the next one begins with |.
//
// Left recursion is refused, as are rules that never come to an end. Errors: Error(input), with the
// line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::text {

/// Code points from first to last, in order and apart.
using CharacterRanges = std::vector<std::pair<char32_t, char32_t>>;
/// In order and apart, whatever was given.
CharacterRanges normalized(CharacterRanges ranges);
/// All others; no surrogates, which no text has.
CharacterRanges complement(const CharacterRanges& ranges);

class Grammar {
 public:
  static constexpr size_t kMostBytes = size_t{256} << 10;  // of a source
  static constexpr size_t kMostNodes = 400'000;
  static constexpr int kMostDepth = 64;             // of groups
  static constexpr int64_t kMostTimes = 1'000'000;  // of a counted repetition
  static constexpr int64_t kAnyTimes = -1;

  enum class Kind : uint8_t {
    never,     // no text
    literal,   // its bytes
    chars,     // one character of some ranges
    sequence,  // its parts one after another; without parts the empty text
    choice,    // one of its parts
    repeat,    // its part `least` to `most` times
    rule,      // what a rule says
    token,     // one of some tokens, or any but these
  };
  struct Node {
    Kind kind = Kind::never;
    std::string text = {};            // literal
    CharacterRanges ranges = {};      // chars
    std::vector<int32_t> parts = {};  // numbers of nodes
    int64_t least = 0, most = 0;      // repeat; kAnyTimes = no bound
    int32_t rule = -1;
    bool all_but = false;                       // token
    std::vector<int32_t> tokens = {};           // by id
    std::vector<std::string> token_texts = {};  // by what the vocabulary calls them
  };
  struct Rule {
    std::string name;
    int32_t body = -1;  // none yet
  };

  // Each gives the number of a node.
  int32_t never() { return add({}); }
  int32_t empty() { return sequence({}); }
  int32_t literal(std::string_view bytes);
  int32_t chars(CharacterRanges ranges);
  int32_t sequence(std::vector<int32_t> parts);
  int32_t choice(std::vector<int32_t> parts);
  int32_t repeat(int32_t part, int64_t least, int64_t most);
  int32_t optional(int32_t part) { return repeat(part, 0, 1); }
  int32_t token(std::vector<int32_t> ids, std::vector<std::string> texts, bool all_but = false);
  /// What follows a rule by its number, whether it has a body yet or not.
  int32_t call(int32_t rule);

  /// The number of a rule by name, new where there is none.
  int32_t rule(std::string_view name);
  /// A rule of a name that is not taken: `name`, or with a number behind it.
  int32_t fresh_rule(std::string_view name);
  void define(int32_t rule, int32_t body);
  int32_t define(std::string_view name, int32_t body);

  /// Text in which `marker` does not occur, up to it and with it: free text before a tag.
  int32_t up_to(std::string_view marker);
  /// Text in which `marker` does not occur.
  int32_t without(std::string_view marker);

  int32_t root() const { return root_; }
  void set_root(int32_t rule) { root_ = rule; }
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(int32_t number) const { return nodes_[static_cast<size_t>(number)]; }

  /// Throws Error(input), naming the rule, for one without a body, left recursion, or a root that
  /// no text fits.
  void check(std::string_view where) const;
  /// By number of node: whether it may be empty, and whether some text fits it.
  std::vector<bool> nullable() const;
  std::vector<bool> productive() const;

  /// The same as GBNF; what there is no notation for (tokens by text without < >) is refused.
  std::string to_gbnf() const;

 private:
  int32_t add(Node node);
  int32_t automaton(std::string_view marker, bool with_marker);

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::unordered_map<std::string, int32_t> by_name_;
  int32_t root_ = 0;
};

/// Throws Error(input) for what is no grammar, too long or too deep.
Grammar parse_gbnf(std::string_view source, const std::string& where);

}  // namespace tessera::text
