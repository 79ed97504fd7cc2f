#include "tessera/text/grammar/grammar_constraint.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

/// The allowed next tokens of a position.
struct TokenMask {
  std::shared_ptr<const std::vector<uint64_t>> bits;
  int64_t deepest = 0;  // max. bytes read of a token
};

/// The cache of a grammar. Texts keep the one that they use.
struct GrammarMemory {
  explicit GrammarMemory(const ByteProgram& program) : automaton(program) {}
  ByteAutomaton automaton;
  std::unordered_map<int32_t, TokenMask> masks;
  /// By shape, some states with masks of their own: first candidates for states that differ in
  /// counts only.
  std::unordered_map<size_t, std::vector<int32_t>> walked;
  /// Bytes that lead from a state to itself, for states where a walk needed them.
  std::unordered_map<int32_t, ByteSet> loops;
  size_t bytes = 0;  // of masks
  size_t walks = 0;  // through the whole vocabulary
};

struct GrammarConstraint::Shared {
  Shared(const Grammar& grammar,
         std::shared_ptr<const TokenTrie> trie,
         const std::string& where,
         const Options& how)
      : vocabulary(std::move(trie)),
        options(how),
        program(grammar,
                where,
                [&](const std::string& text) { return vocabulary->named(text).value_or(-1); }),
        memory(std::make_shared<GrammarMemory>(program)) {
    for (const Grammar::Node& node : grammar.nodes())
      for (const int32_t id : node.tokens)
        if (id >= vocabulary->size())
          fail(ErrorKind::input, where, "token <[{}]>; expected ids from 0 to {}", id,
               vocabulary->size() - 1);
  }

  /// Looks up a mask, copies it from a state that differs in counts no token can exhaust, or finds
  /// it by a walk.
  const TokenMask& mask_of(GrammarMemory& m, int32_t state) const {
    if (const auto found = m.masks.find(state); found != m.masks.end()) return found->second;
    constexpr size_t kMostWalked = 8;
    constexpr int64_t kFew = 8;  // a walk with that much in common is partial
    std::vector<int32_t>& walked = m.walked[m.automaton.shape(state)];
    const TokenMask* like = nullptr;
    int64_t bytes = 0;
    for (const int32_t other : walked) {
      const int64_t alike = m.automaton.alike_for(state, other);
      if (alike <= bytes) continue;
      like = &m.masks.at(other);
      bytes = alike;
    }
    m.bytes += 64;
    if (like != nullptr && bytes > like->deepest)
      return m.masks.emplace(state, *like).first->second;
    TokenMask made = walk(m, state, like, bytes);
    m.bytes += made.bits->size() * sizeof(uint64_t);
    if (bytes < kFew) ++m.walks;
    if (bytes < kFew && walked.size() < kMostWalked) walked.push_back(state);
    return m.masks.emplace(state, std::move(made)).first->second;
  }

  /// One walk: skips subtrees below a byte that is not allowed, and those without tokens of more
  /// than `bytes`, for which `like` gives the result.
  TokenMask walk(GrammarMemory& m, int32_t state, const TokenMask* like, int64_t bytes) const {
    std::vector<uint64_t> bits =
        like != nullptr
            ? *like->bits
            : std::vector<uint64_t>((static_cast<size_t>(vocabulary->size()) + 63) / 64, 0);
    int64_t deepest = like != nullptr ? std::min(bytes, like->deepest) : 0;
    const auto& nodes = vocabulary->nodes();
    const auto& ids = vocabulary->ids();
    const auto& reach = vocabulary->reach();
    std::vector<int32_t> down(vocabulary->longest() + 1);
    down[0] = state;
    for (size_t i = 0; i < nodes.size();) {
      const TokenTrie::Node& node = nodes[i];
      const int64_t length = int64_t{node.depth} + 1;
      if (reach[i] <= bytes) {
        i = node.end;
        continue;
      }
      const int32_t to = m.automaton.step(down[node.depth], node.byte);
      if (to == ByteAutomaton::kDead) {
        if (like != nullptr && length > bytes) {
          const size_t behind = behind_of(node);
          for (size_t t = node.first; t < behind; ++t) clear_bit(bits, ids[t]);
        }
        i = node.end;
        continue;
      }
      deepest = std::max(deepest, length);
      // if all bytes of a subtree stay in the state, all its tokens are allowed
      if (to == down[node.depth] && vocabulary->below()[i].within(loops_of(m, to))) {
        deepest = std::max<int64_t>(deepest, reach[i]);
        const size_t behind = behind_of(node);
        for (size_t t = node.first; t < behind; ++t) set_bit(bits, ids[t]);
        i = node.end;
        continue;
      }
      down[node.depth + size_t{1}] = to;
      if (length > bytes)
        for (uint32_t t = node.first; t < node.behind; ++t) set_bit(bits, ids[t]);
      ++i;
    }
    if (m.automaton.has_tokens(state)) add_named(m, state, bits);
    return {std::make_shared<const std::vector<uint64_t>>(std::move(bits)), deepest};
  }

  /// One past the last token of a subtree.
  size_t behind_of(const TokenTrie::Node& node) const {
    const auto& nodes = vocabulary->nodes();
    return node.end < nodes.size() ? nodes[node.end].first : vocabulary->ids().size();
  }

  const ByteSet& loops_of(GrammarMemory& m, int32_t state) const {
    const auto [found, fresh] = m.loops.try_emplace(state);
    if (!fresh) return found->second;
    ByteSet& loops = found->second;
    bool above = true;
    for (int byte = 255; byte >= 0; --byte) {
      const bool stays = m.automaton.step(state, static_cast<uint8_t>(byte)) == state;
      if (byte > 127)
        above = above && stays;
      else if (stays && (byte < 127 || above))
        loops.add(static_cast<uint8_t>(byte));
    }
    m.bytes += 64;
    return loops;
  }

  void add_named(const GrammarMemory& m, int32_t state, std::span<uint64_t> bits) const {
    m.automaton.tokens(state, [&](const std::vector<int32_t>& named, bool all_but) {
      for (int32_t id = 0; id < vocabulary->size(); ++id)
        // of all tokens except some, the text tokens
        if (all_but ? vocabulary->bytes(id) && !std::binary_search(named.begin(), named.end(), id)
                    : std::binary_search(named.begin(), named.end(), id))
          set_bit(bits, id);
    });
  }

  int32_t read(ByteAutomaton& automaton, int32_t state, std::string_view bytes) const {
    for (size_t i = 0; i < bytes.size() && state != ByteAutomaton::kDead; ++i)
      state = automaton.step(state, static_cast<uint8_t>(bytes[i]));
    return state;
  }

  /// The cache for new texts; replaced when it has grown too large.
  std::shared_ptr<GrammarMemory> current() {
    if (memory->automaton.bytes() + memory->bytes > options.most_bytes) {
      memory = std::make_shared<GrammarMemory>(program);
      ++restarts;
    }
    return memory;
  }

  const std::shared_ptr<const TokenTrie> vocabulary;
  const Options options;
  const ByteProgram program;
  std::mutex mutex;  // guards everything below, and every cache
  std::shared_ptr<GrammarMemory> memory;
  size_t restarts = 0;
};

namespace {

class GrammarState final : public ConstraintState {
 public:
  GrammarState(std::shared_ptr<GrammarConstraint::Shared> shared,
               std::shared_ptr<GrammarMemory> memory)
      : shared_(std::move(shared)), memory_(std::move(memory)), at_(memory_->automaton.start()) {
    note();
  }

  std::unique_ptr<ConstraintState> clone() const override {
    return std::make_unique<GrammarState>(*this);
  }

  void allow(std::span<uint64_t> bits) const override {
    const std::lock_guard lock(shared_->mutex);
    const std::vector<uint64_t>& mask = *shared_->mask_of(*memory_, at_).bits;
    std::fill(std::copy_n(mask.begin(), std::min(mask.size(), bits.size()), bits.begin()),
              bits.end(), 0);
  }

  bool accept(int64_t id) override {
    if (id < 0 || id >= shared_->vocabulary->size()) return false;
    const std::lock_guard lock(shared_->mutex);
    ByteAutomaton& automaton = memory_->automaton;
    const auto token = static_cast<int32_t>(id);
    int32_t to = ByteAutomaton::kDead;
    if (const auto& bytes = shared_->vocabulary->bytes(token))
      to = shared_->read(automaton, at_, *bytes);
    if (automaton.has_tokens(at_)) to = automaton.united(to, named(token));
    if (to == ByteAutomaton::kDead) return false;
    at_ = to;
    // texts move to a new cache together
    if (const auto current = shared_->current(); current != memory_) {
      at_ = current->automaton.carried(automaton, at_);
      memory_ = current;
    }
    note();
    return true;
  }

  bool may_end() const override { return may_end_; }
  bool must_end() const override { return must_end_; }

  std::string expected() const override {
    const std::lock_guard lock(shared_->mutex);
    const auto bytes = memory_->automaton.next_bytes(at_);
    std::vector<std::string> few;
    bool parts = false;
    for (size_t b = 0; b < bytes.size(); ++b) {
      if (!bytes[b]) continue;
      const char c = static_cast<char>(b);
      parts = parts || b >= 0x80;
      few.push_back(b < 0x20 || b >= 0x7F ? fmt::format("byte {:02X}", b) : fmt::format("'{}'", c));
    }
    constexpr size_t kFew = 6;
    std::string out;
    if (few.size() > kFew || parts) {
      out = fmt::format("more of \"{}\"", memory_->automaton.rule_at(at_));
    } else {
      for (const std::string& one : few) out += (out.empty() ? "" : " or ") + one;
    }
    if (memory_->automaton.has_tokens(at_)) out += out.empty() ? "a token" : " or a token";
    if (may_end_) out += out.empty() ? "the end" : " or the end";
    return out;
  }

 private:
  /// Applies the grammar's own token rules.
  int32_t named(int32_t token) {
    bool allowed = false;
    memory_->automaton.tokens(at_, [&](const std::vector<int32_t>& named, bool all_but) {
      const bool among = std::binary_search(named.begin(), named.end(), token);
      allowed = allowed || (all_but ? !among && shared_->vocabulary->bytes(token) : among);
    });
    return allowed ? memory_->automaton.step_token(at_, token) : ByteAutomaton::kDead;
  }
  void note() {
    may_end_ = memory_->automaton.may_end(at_);
    must_end_ = memory_->automaton.must_end(at_);
  }

  std::shared_ptr<GrammarConstraint::Shared> shared_;
  std::shared_ptr<GrammarMemory> memory_;
  int32_t at_ = 0;
  bool may_end_ = false, must_end_ = false;
};

}  // namespace

GrammarConstraint::GrammarConstraint(const Grammar& grammar,
                                     std::shared_ptr<const TokenTrie> vocabulary,
                                     const std::string& where)
    : GrammarConstraint(grammar, std::move(vocabulary), where, Options()) {}

GrammarConstraint::GrammarConstraint(const Grammar& grammar,
                                     std::shared_ptr<const TokenTrie> vocabulary,
                                     const std::string& where,
                                     const Options& options)
    : shared_(std::make_shared<Shared>(grammar, std::move(vocabulary), where, options)) {}

GrammarConstraint::~GrammarConstraint() = default;

std::unique_ptr<ConstraintState> GrammarConstraint::start() const {
  const std::lock_guard lock(shared_->mutex);
  return std::make_unique<GrammarState>(shared_, shared_->current());
}

bool GrammarConstraint::holds(std::string_view text) const {
  const std::lock_guard lock(shared_->mutex);
  const auto memory = shared_->current();
  const int32_t state = shared_->read(memory->automaton, memory->automaton.start(), text);
  return state != ByteAutomaton::kDead && memory->automaton.may_end(state);
}

GrammarConstraint::Counts GrammarConstraint::counts() const {
  const std::lock_guard lock(shared_->mutex);
  const GrammarMemory& m = *shared_->memory;
  return {m.automaton.states(), m.masks.size(), m.automaton.bytes() + m.bytes, shared_->restarts,
          m.walks};
}

}  // namespace tessera::text
