// A grammar compiled to a byte automaton: which bytes may follow at any position of a text.
//
// Positions of the grammar are nodes; the context of a position (the calling rule, iterations of a
// counted repetition) is a stack of frames, shared between positions. The state of a text is a set
// of positions with their stacks, without duplicates. Transitions between states are cached, so the
// automaton is built lazily.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

/// Immutable.
class ByteProgram {
 public:
  enum class Kind : uint8_t { end, bytes, token, split, call, counter };
  struct Edge {
    uint8_t first = 0, last = 0;
    int32_t to = 0;
  };
  struct Node {
    Kind kind = Kind::end;
    bool all_but = false;              // token
    bool may_be_empty = false;         // counter: the repeated part
    int32_t rule = 0;                  // rule of the node
    int32_t next = 0;                  // call, counter, token: the node after it
    int32_t body = 0;                  // call: the rule; counter: first node of an iteration
    int64_t least = 0, most = 0;       // counter
    std::vector<Edge> edges = {};      // bytes
    std::vector<int32_t> to = {};      // split
    std::vector<int32_t> tokens = {};  // in order
  };
  /// `named` returns the id of a token by its text, -1 for none. Throws Error(input) for a grammar
  /// that check() rejects, an unknown token, or a grammar that is too large.
  ByteProgram(const Grammar& grammar,
              const std::string& where,
              const std::function<int32_t(const std::string&)>& named);

  const Node& node(int32_t number) const { return nodes_[static_cast<size_t>(number)]; }
  int32_t entry(int32_t rule) const { return entries_[static_cast<size_t>(rule)]; }
  int32_t root() const { return root_; }
  const std::string& rule_name(int32_t rule) const { return names_[static_cast<size_t>(rule)]; }
  const std::string& where() const { return where_; }

 private:
  class Compiler;
  static constexpr size_t kMostNodes = 1'500'000;

  std::vector<Node> nodes_;  // the first is the end of all rules
  std::vector<int32_t> entries_;
  std::vector<std::string> names_;
  int32_t root_ = 0;
  std::string where_;
};

/// The lazily built automaton. Used by one thread at a time.
class ByteAutomaton {
 public:
  explicit ByteAutomaton(const ByteProgram& program);  // which must outlive it

  static constexpr int32_t kDead = -1;
  int32_t start() const { return start_; }
  /// kDead if the byte is not allowed.
  int32_t step(int32_t state, uint8_t byte) {
    const int32_t known = states_[static_cast<size_t>(state)].to[byte];
    return known != kUnknown ? known : find(state, byte);
  }
  /// Transition by a token of the grammar, instead of by its bytes.
  int32_t step_token(int32_t state, int32_t id);
  /// The union of two states.
  int32_t united(int32_t a, int32_t b);

  bool may_end(int32_t state) const { return states_[static_cast<size_t>(state)].may_end; }
  bool must_end(int32_t state) const {
    const State& s = states_[static_cast<size_t>(state)];
    return s.may_end && s.positions.size() == 1;
  }
  /// True if tokens of the grammar may follow; which: visit(ids, all_but).
  bool has_tokens(int32_t state) const { return states_[static_cast<size_t>(state)].has_tokens; }
  template <class Visit>
  void tokens(int32_t state, const Visit& visit) const {
    for (const Position& position : states_[static_cast<size_t>(state)].positions)
      if (const auto& node = program_.node(position.node); node.kind == ByteProgram::Kind::token)
        visit(node.tokens, node.all_but);
  }
  /// The bytes that may follow, and a rule that needs them.
  std::array<bool, 256> next_bytes(int32_t state) const;
  std::string rule_at(int32_t state) const;

  size_t bytes() const { return bytes_; }
  size_t states() const { return states_.size(); }
  /// Number of bytes for which both states allow the same texts: their positions differ only in
  /// repetition counts, which are that far from their minimum and maximum. 0 if they differ
  /// otherwise.
  int64_t alike_for(int32_t a, int32_t b) const;
  /// Equal for states that alike_for() may accept.
  size_t shape(int32_t state) const;

  /// The same state in another automaton of the same program.
  int32_t carried(const ByteAutomaton& from, int32_t state);

 private:
  static constexpr int32_t kUnknown = -2;
  static constexpr size_t kMostPositions = 10'000;
  struct Position {
    int32_t node = 0, count = 0, frame = -1;
    auto operator<=>(const Position&) const = default;
  };
  struct State {
    std::vector<Position> positions;  // sorted
    std::array<int32_t, 256> to;
    bool may_end = false, has_tokens = false;
  };
  struct PositionHash {
    size_t operator()(const Position& p) const;
  };
  struct PositionsHash {
    size_t operator()(const std::vector<Position>& p) const;
  };
  /// A frame is the position to which a rule, or an iteration, returns.
  int32_t frame(const Position& back);
  int32_t find(int32_t state, uint8_t byte);
  /// The positions that can read, starting from those of `todo_`.
  std::vector<Position> settled();
  int32_t state(std::vector<Position> positions);

  const ByteProgram& program_;
  std::vector<Position> frames_;
  std::unordered_map<Position, int32_t, PositionHash> frame_numbers_;
  std::vector<State> states_;
  std::unordered_map<std::vector<Position>, int32_t, PositionsHash> state_numbers_;
  std::vector<Position> todo_;
  int32_t start_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tessera::text
