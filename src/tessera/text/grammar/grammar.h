// Context-free grammars over text, for constrained decoding. Parsed from GBNF (the notation of
// llama.cpp), a regular expression or a JSON schema (json_schema.h), or built with this class.
//
//   root  ::= "{" pair ("," pair)* "}"      # alternatives |, groups ( ), comments
//   pair  ::= [a-z]+ ":" [0-9]{1,3}         # classes, . for any character, * + ? {m} {m,} {m,n}
//   think ::= <think> .* <[7]> !<[8]>       # tokens by text or id, and all but one
//
// A name is letters, digits, "-" and "_"; "root" is the start rule. Escapes in literals and
// classes: \n \r \t \\ \" \[ \] \- \^ \/ \xXX \uXXXX \UXXXXXXXX (code points). A rule ends at a
// line end outside of parentheses, unless the next line begins with |.
//
// Left recursion and rules that never end are rejected. Errors: Error(input), with the line.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::text {

/// Code point ranges, inclusive, sorted and disjoint.
using CharacterRanges = std::vector<std::pair<char32_t, char32_t>>;
/// Sorts and merges any ranges.
CharacterRanges normalized(CharacterRanges ranges);
/// All other code points, without surrogates.
CharacterRanges complement(const CharacterRanges& ranges);

class Grammar {
 public:
  static constexpr size_t kMostBytes = size_t{256} << 10;  // of a source
  static constexpr size_t kMostNodes = 400'000;
  static constexpr int kMostDepth = 64;             // of groups
  static constexpr int64_t kMostTimes = 1'000'000;  // of a counted repetition
  static constexpr int64_t kAnyTimes = -1;

  enum class Kind : uint8_t {
    never,     // matches nothing
    literal,   // its bytes
    chars,     // one character of its ranges
    sequence,  // its parts in order; without parts the empty text
    choice,    // one of its parts
    repeat,    // its part `least` to `most` times
    rule,      // a rule
    token,     // one of its tokens, or any except them
  };
  struct Node {
    Kind kind = Kind::never;
    std::string text = {};            // literal
    CharacterRanges ranges = {};      // chars
    std::vector<int32_t> parts = {};  // numbers of nodes
    int64_t least = 0, most = 0;      // repeat; kAnyTimes = no limit
    int32_t rule = -1;
    bool all_but = false;                       // token
    std::vector<int32_t> tokens = {};           // by id
    std::vector<std::string> token_texts = {};  // by text in the vocabulary
  };
  struct Rule {
    std::string name;
    int32_t body = -1;  // -1: not defined yet
  };

  // Each returns a node index.
  int32_t never() { return add({}); }
  int32_t empty() { return sequence({}); }
  int32_t literal(std::string_view bytes);
  int32_t chars(CharacterRanges ranges);
  int32_t sequence(std::vector<int32_t> parts);
  int32_t choice(std::vector<int32_t> parts);
  int32_t repeat(int32_t part, int64_t least, int64_t most);
  int32_t optional(int32_t part) { return repeat(part, 0, 1); }
  int32_t token(std::vector<int32_t> ids, std::vector<std::string> texts, bool all_but = false);
  /// A reference to a rule, which may be defined later.
  int32_t call(int32_t rule);

  /// The index of a rule by name; adds it if necessary.
  int32_t rule(std::string_view name);
  /// Adds a rule with a free name: `name`, or with a number appended.
  int32_t fresh_rule(std::string_view name);
  void define(int32_t rule, int32_t body);
  int32_t define(std::string_view name, int32_t body);

  /// Text up to and including the first `marker`: free text before a tag.
  int32_t up_to(std::string_view marker);
  /// Text without `marker`.
  int32_t without(std::string_view marker);

  int32_t root() const { return root_; }
  void set_root(int32_t rule) { root_ = rule; }
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(int32_t number) const { return nodes_[static_cast<size_t>(number)]; }

  /// Throws Error(input), naming the rule, for an undefined rule, left recursion, or a root that
  /// matches nothing.
  void check(std::string_view where) const;
  /// By node index: whether it matches the empty text; whether it matches any text.
  std::vector<bool> nullable() const;
  std::vector<bool> productive() const;

  /// The grammar as GBNF; tokens by text without < > have no notation and are rejected.
  std::string to_gbnf() const;

 private:
  int32_t add(Node node);
  int32_t automaton(std::string_view marker, bool with_marker);

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  std::unordered_map<std::string, int32_t> by_name_;
  int32_t root_ = 0;
};

/// Throws Error(input) for an invalid grammar, or one that is too long or too deep.
Grammar parse_gbnf(std::string_view source, const std::string& where);

}  // namespace tessera::text
