#include "tessera/text/grammar/byte_program.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

/// A range of code points whose UTF-8 encodings are all combinations of some byte ranges.
using ByteRanges = std::vector<std::pair<uint8_t, uint8_t>>;

void encode_utf8(char32_t c, size_t length, uint8_t* out) {
  static constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (size_t i = length; i-- > 1; c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  out[0] = static_cast<uint8_t>(length == 1 ? c : kLead[length] | c);
}

/// Splits a range where the number of bytes changes, and where a byte's range is incomplete.
void cut_utf8(char32_t first, char32_t last, std::vector<ByteRanges>& out) {
  static constexpr char32_t kLastOf[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  for (size_t length = 1; length <= 4; ++length) {
    const char32_t most = kLastOf[length - 1];
    if (first > most) continue;
    if (last > most) {
      cut_utf8(first, most, out);
      return cut_utf8(most + 1, last, out);
    }
    for (size_t i = 1; i < length; ++i) {
      const char32_t low = (char32_t{1} << (6 * i)) - 1;
      if ((first & ~low) == (last & ~low)) continue;
      if ((first & low) != 0) {
        cut_utf8(first, first | low, out);
        return cut_utf8((first | low) + 1, last, out);
      }
      if ((last & low) != low) {
        cut_utf8(first, (last & ~low) - 1, out);
        return cut_utf8(last & ~low, last, out);
      }
    }
    uint8_t a[4], b[4];
    encode_utf8(first, length, a);
    encode_utf8(last, length, b);
    ByteRanges bytes;
    for (size_t i = 0; i < length; ++i) bytes.emplace_back(a[i], b[i]);
    out.push_back(std::move(bytes));
    return;
  }
}

}  // namespace

class ByteProgram::Compiler {
 public:
  Compiler(ByteProgram& program,
           const Grammar& grammar,
           const std::function<int32_t(const std::string&)>& named)
      : p_(program),
        g_(grammar),
        named_(named),
        nullable_(grammar.nullable()),
        productive_(grammar.productive()) {}

  void compile() {
    add({.kind = Kind::end});
    p_.entries_.assign(g_.rules().size(), -1);
    for (const Grammar::Rule& rule : g_.rules()) p_.names_.push_back(rule.name);
    // rules that are unreachable from the root are left out
    std::vector<int32_t> todo = {g_.root()};
    called_.assign(g_.rules().size(), false);
    called_[static_cast<size_t>(g_.root())] = true;
    waiting_ = &todo;
    while (!todo.empty()) {
      rule_ = todo.back();
      todo.pop_back();
      const int32_t entry = node(g_.rules()[static_cast<size_t>(rule_)].body, kEnd, 0);
      p_.entries_[static_cast<size_t>(rule_)] = entry;
    }
    p_.root_ = g_.root();
  }

 private:
  static constexpr int32_t kEnd = 0;

  int32_t add(Node node) {
    if (p_.nodes_.size() >= kMostNodes)
      fail(ErrorKind::input, p_.where_, "a grammar of more than {} places; expected a smaller one",
           kMostNodes);
    node.rule = rule_;
    p_.nodes_.push_back(std::move(node));
    return static_cast<int32_t>(p_.nodes_.size() - 1);
  }
  bool productive(int32_t number) const { return productive_[static_cast<size_t>(number)]; }

  /// The first node of a part followed by `next`. Parts that match nothing are left out by the
  /// caller.
  int32_t node(int32_t number, int32_t next, int depth) {
    constexpr int kMostDepth = 2000;
    if (depth > kMostDepth) fail(ErrorKind::input, p_.where_, "parts nested too deep");
    const Grammar::Node& n = g_.node(number);
    switch (n.kind) {
      case Grammar::Kind::never:
        return add({.kind = Kind::split});
      case Grammar::Kind::literal:
        for (size_t i = n.text.size(); i-- > 0;) {
          const auto byte = static_cast<uint8_t>(n.text[i]);
          next = add({.kind = Kind::bytes, .edges = {{byte, byte, next}}});
        }
        return next;
      case Grammar::Kind::chars:
        return chars(n.ranges, next);
      case Grammar::Kind::sequence:
        for (size_t i = n.parts.size(); i-- > 0;) next = node(n.parts[i], next, depth + 1);
        return next;
      case Grammar::Kind::choice: {
        std::vector<int32_t> to;
        for (const int32_t part : n.parts)
          if (productive(part)) to.push_back(node(part, next, depth + 1));
        return to.size() == 1 ? to[0] : add({.kind = Kind::split, .to = std::move(to)});
      }
      case Grammar::Kind::repeat:
        return repeat(n, next, depth);
      case Grammar::Kind::rule: {
        const auto rule = static_cast<size_t>(n.rule);
        if (!called_[rule]) waiting_->push_back(n.rule);
        called_[rule] = true;
        return add({.kind = Kind::call, .next = next, .body = n.rule});
      }
      case Grammar::Kind::token:
        return token(n, next);
    }
    return next;
  }

  int32_t repeat(const Grammar::Node& n, int32_t next, int depth) {
    const int32_t part = n.parts[0];
    if (!productive(part)) return next;  // zero repetitions, otherwise the caller would not need it
    const bool any = n.most == Grammar::kAnyTimes;
    // an empty match can be repeated any number of times
    const bool may_be_empty = nullable_[static_cast<size_t>(part)];
    const int64_t least = may_be_empty ? 0 : n.least;
    if (!any && n.most == 1)
      return add({.kind = Kind::split, .to = {node(part, next, depth + 1), next}});
    if (any && least <= 1) {
      const int32_t again = add({.kind = Kind::split});
      const int32_t body = node(part, again, depth + 1);
      p_.nodes_[static_cast<size_t>(again)].to = {body, next};
      return least == 0 ? again : body;
    }
    const int32_t counter = add({.kind = Kind::counter,
                                 .may_be_empty = may_be_empty,
                                 .next = next,
                                 .least = least,
                                 .most = n.most});
    const int32_t body = node(part, kEnd, depth + 1);
    p_.nodes_[static_cast<size_t>(counter)].body = body;
    return counter;
  }

  int32_t token(const Grammar::Node& n, int32_t next) {
    Node out{.kind = Kind::token, .all_but = n.all_but, .next = next, .tokens = n.tokens};
    for (const std::string& text : n.token_texts) {
      const int32_t id = named_(text);
      if (id < 0)
        fail(ErrorKind::input, p_.where_,
             "the vocabulary has no token {}; expected one of its tokens, or a text in quotes",
             text.substr(0, 60));
      out.tokens.push_back(id);
    }
    std::sort(out.tokens.begin(), out.tokens.end());
    return add(std::move(out));
  }

  int32_t chars(const CharacterRanges& ranges, int32_t next) {
    std::vector<ByteRanges> all;
    for (const auto& [first, last] : ranges) cut_utf8(first, last, all);
    std::map<std::vector<ByteRanges>, int32_t> known;
    return tails(all, 0, next, known);
  }

  /// The encodings after their first bytes; equal continuations share nodes.
  int32_t tails(const std::vector<ByteRanges>& all,
                size_t at,
                int32_t next,
                std::map<std::vector<ByteRanges>, int32_t>& known) {
    if (const auto found = known.find(all); found != known.end()) return found->second;
    std::vector<Edge> edges;
    for (size_t i = 0; i < all.size();) {
      const auto lead = all[i][0];
      std::vector<ByteRanges> rest;
      for (; i < all.size() && all[i][0] == lead; ++i)
        if (all[i].size() > 1) rest.emplace_back(all[i].begin() + 1, all[i].end());
      const int32_t to = rest.empty() ? next : tails(rest, at + 1, next, known);
      if (!edges.empty() && edges.back().to == to && edges.back().last + 1 == lead.first)
        edges.back().last = lead.second;
      else
        edges.push_back({lead.first, lead.second, to});
    }
    const int32_t made = add({.kind = Kind::bytes, .edges = std::move(edges)});
    known.emplace(all, made);
    return made;
  }

  ByteProgram& p_;
  const Grammar& g_;
  const std::function<int32_t(const std::string&)>& named_;
  std::vector<bool> nullable_, productive_, called_;
  std::vector<int32_t>* waiting_ = nullptr;
  int32_t rule_ = 0;
};

ByteProgram::ByteProgram(const Grammar& grammar,
                         const std::string& where,
                         const std::function<int32_t(const std::string&)>& named)
    : where_(where) {
  grammar.check(where);
  Compiler(*this, grammar, named).compile();
}

// --- the automaton

namespace {

size_t mixed_hash(size_t seed, size_t value) {
  // the 64-bit golden ratio
  return (seed ^ value) * 0x9E3779B97F4A7C15u + (seed >> 29);
}

}  // namespace

size_t ByteAutomaton::PositionHash::operator()(const Position& p) const {
  return mixed_hash(mixed_hash(static_cast<size_t>(p.node), static_cast<size_t>(p.count)),
                    static_cast<size_t>(p.frame));
}
size_t ByteAutomaton::PositionsHash::operator()(const std::vector<Position>& positions) const {
  size_t hash = positions.size();
  for (const Position& p : positions) hash = mixed_hash(hash, PositionHash()(p));
  return hash;
}

ByteAutomaton::ByteAutomaton(const ByteProgram& program) : program_(program) {
  todo_ = {{program.entry(program.root()), 0, -1}};
  start_ = state(settled());
}

int32_t ByteAutomaton::frame(const Position& back) {
  const auto [found, fresh] =
      frame_numbers_.try_emplace(back, static_cast<int32_t>(frames_.size()));
  if (fresh) {
    frames_.push_back(back);
    bytes_ += 5 * sizeof(Position);
  }
  return found->second;
}

std::vector<ByteAutomaton::Position> ByteAutomaton::settled() {
  std::vector<Position> out;
  std::vector<Position> seen;
  std::unordered_set<Position, PositionHash> many;
  std::vector<int32_t> begun;  // iterations that have read nothing yet
  const auto is_new = [&](const Position& p) {
    constexpr size_t kFew = 32;
    if (many.empty()) {
      if (std::find(seen.begin(), seen.end(), p) != seen.end()) return false;
      seen.push_back(p);
      if (seen.size() > kFew) many.insert(seen.begin(), seen.end());
      return true;
    }
    if (many.size() > kMostPositions)
      fail(ErrorKind::input, program_.where(),
           "more than {} ways to read a text; expected a grammar with fewer", kMostPositions);
    return many.insert(p).second;
  };
  using Kind = ByteProgram::Kind;
  while (!todo_.empty()) {
    const Position at = todo_.back();
    todo_.pop_back();
    if (!is_new(at)) continue;
    const ByteProgram::Node& node = program_.node(at.node);
    switch (node.kind) {
      case Kind::bytes:
      case Kind::token:
        out.push_back(at);
        break;
      case Kind::split:
        for (const int32_t to : node.to) todo_.push_back({to, 0, at.frame});
        break;
      case Kind::call: {
        // tail call: the caller has nothing left
        const bool last = program_.node(node.next).kind == Kind::end;
        todo_.push_back(
            {program_.entry(node.body), 0, last ? at.frame : frame({node.next, 0, at.frame})});
        break;
      }
      case Kind::counter: {
        const bool any = node.most == Grammar::kAnyTimes;
        if (at.count >= node.least) todo_.push_back({node.next, 0, at.frame});
        if (!any && at.count >= node.most) break;
        const auto count =
            static_cast<int32_t>(any ? std::min<int64_t>(at.count + 1, node.least) : at.count + 1);
        const int32_t round = frame({at.node, count, at.frame});
        if (node.may_be_empty) begun.push_back(round);
        todo_.push_back({node.body, 0, round});
        break;
      }
      case Kind::end:
        if (at.frame < 0) {
          out.push_back(at);
          break;
        }
        // an empty iteration reaches nothing new
        if (std::find(begun.begin(), begun.end(), at.frame) == begun.end())
          todo_.push_back(frames_[static_cast<size_t>(at.frame)]);
        break;
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

int32_t ByteAutomaton::state(std::vector<Position> positions) {
  if (positions.empty()) return kDead;
  const auto [found, fresh] =
      state_numbers_.try_emplace(positions, static_cast<int32_t>(states_.size()));
  if (!fresh) return found->second;
  State made;
  made.to.fill(kUnknown);
  for (const Position& position : positions) {
    const auto kind = program_.node(position.node).kind;
    made.may_end = made.may_end || kind == ByteProgram::Kind::end;
    made.has_tokens = made.has_tokens || kind == ByteProgram::Kind::token;
  }
  bytes_ += sizeof(State) + 128 + 2 * positions.size() * sizeof(Position);
  made.positions = std::move(positions);
  states_.push_back(std::move(made));
  return found->second;
}

int32_t ByteAutomaton::find(int32_t from, uint8_t byte) {
  todo_.clear();
  for (const Position& position : states_[static_cast<size_t>(from)].positions)
    for (const ByteProgram::Edge& edge : program_.node(position.node).edges)
      if (edge.first <= byte && byte <= edge.last) todo_.push_back({edge.to, 0, position.frame});
  const int32_t to = todo_.empty() ? kDead : state(settled());
  states_[static_cast<size_t>(from)].to[byte] = to;
  return to;
}

int32_t ByteAutomaton::step_token(int32_t from, int32_t id) {
  todo_.clear();
  for (const Position& position : states_[static_cast<size_t>(from)].positions) {
    const ByteProgram::Node& node = program_.node(position.node);
    if (node.kind == ByteProgram::Kind::token &&
        std::binary_search(node.tokens.begin(), node.tokens.end(), id) != node.all_but)
      todo_.push_back({node.next, 0, position.frame});
  }
  return todo_.empty() ? kDead : state(settled());
}

int32_t ByteAutomaton::united(int32_t a, int32_t b) {
  if (a == kDead || a == b) return b;
  if (b == kDead) return a;
  std::vector<Position> positions;
  const auto &x = states_[static_cast<size_t>(a)].positions,
             &y = states_[static_cast<size_t>(b)].positions;
  std::set_union(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(positions));
  return state(std::move(positions));
}

std::array<bool, 256> ByteAutomaton::next_bytes(int32_t at) const {
  std::array<bool, 256> out{};
  for (const Position& position : states_[static_cast<size_t>(at)].positions)
    for (const ByteProgram::Edge& edge : program_.node(position.node).edges)
      std::fill(out.begin() + edge.first, out.begin() + edge.last + 1, true);
  return out;
}

std::string ByteAutomaton::rule_at(int32_t at) const {
  for (const Position& position : states_[static_cast<size_t>(at)].positions)
    if (const auto& node = program_.node(position.node); node.kind != ByteProgram::Kind::end)
      return program_.rule_name(node.rule);
  return {};
}

int64_t ByteAutomaton::alike_for(int32_t a, int32_t b) const {
  constexpr int64_t kAlways = std::numeric_limits<int64_t>::max();
  const auto &x = states_[static_cast<size_t>(a)].positions,
             &y = states_[static_cast<size_t>(b)].positions;
  if (x.size() != y.size()) return 0;
  int64_t bytes = kAlways;
  for (size_t i = 0; i < x.size() && bytes > 0; ++i) {
    if (x[i].node != y[i].node) return 0;
    int32_t f = x[i].frame, g = y[i].frame;
    for (; f != g;
         f = frames_[static_cast<size_t>(f)].frame, g = frames_[static_cast<size_t>(g)].frame) {
      if (f < 0 || g < 0) return 0;
      const Position &p = frames_[static_cast<size_t>(f)], &q = frames_[static_cast<size_t>(g)];
      if (p.node != q.node) return 0;
      if (p.count == q.count) continue;
      // an iteration reads at least one byte: neither count reaches a limit within that many
      const ByteProgram::Node& node = program_.node(p.node);
      const int64_t less = std::min(p.count, q.count), more = std::max(p.count, q.count);
      if (less < node.least) bytes = std::min(bytes, node.least - more - 1);
      if (node.most != Grammar::kAnyTimes) bytes = std::min(bytes, node.most - more - 1);
    }
  }
  return std::max<int64_t>(0, bytes);
}

size_t ByteAutomaton::shape(int32_t at) const {
  size_t hash = 0;
  const auto mix = [&](int32_t node) {
    hash = (hash ^ static_cast<size_t>(node)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  };
  for (const Position& position : states_[static_cast<size_t>(at)].positions) {
    mix(position.node);
    for (int32_t f = position.frame; f >= 0; f = frames_[static_cast<size_t>(f)].frame)
      mix(frames_[static_cast<size_t>(f)].node);
    mix(-1);
  }
  return hash;
}

int32_t ByteAutomaton::carried(const ByteAutomaton& from, int32_t at) {
  std::vector<Position> positions;
  std::unordered_map<int32_t, int32_t> known = {{-1, -1}};
  for (Position position : from.states_[static_cast<size_t>(at)].positions) {
    std::vector<int32_t> chain;
    for (int32_t f = position.frame; !known.contains(f);
         f = from.frames_[static_cast<size_t>(f)].frame)
      chain.push_back(f);
    for (; !chain.empty(); chain.pop_back()) {
      Position back = from.frames_[static_cast<size_t>(chain.back())];
      back.frame = known.at(back.frame);
      known[chain.back()] = frame(back);
    }
    position.frame = known.at(position.frame);
    positions.push_back(position);
  }
  std::sort(positions.begin(), positions.end());
  return state(std::move(positions));
}

}  // namespace tessera::text
