#include "tessera/infer/engine/prefix_cache.h"
#include "tessera/model/call_plan.h"

#include <algorithm>
#include <deque>

namespace tessera::infer {
namespace {

using Kinds = spec::StateDecl::Kind;

/// Kind and length of the source stand before the tokens of a key.
constexpr size_t kKeyHead = 5;
constexpr int64_t kTokenBytes = sizeof(int64_t);

/// "" when a document's first tokens are the same whatever follows them.
std::string reads_ahead(const model::ModelSpec& spec) {
  std::string reason;
  const auto look = [&](const spec::AnyPart& part) {
    const model::Slot slot = part.mechanism->slot;
    if (part.info().causality == spec::Causality::none &&
        (slot == model::Slot::mixer || slot == model::Slot::pattern))
      reason = fmt::format("{} lets tokens see later ones", part.type());
  };
  for (const model::LayerSpec& layer : spec.layers)
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches) spec::for_each_part(branch.part, look);
  return reason;
}

}  // namespace

struct PrefixCache::Snapshot {
  std::shared_ptr<const model::State> state;
  Tensor last;
  int64_t tokens = 0;
  std::set<const nn::Page*> pages = {};
  int64_t fixed_bytes = 0;  // of what lies in no page
};

namespace {
int64_t bytes_of(const Tensor& t) {
  return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
}
}  // namespace

struct PrefixCache::Node {
  Key edge;  // from the parent; empty at the root alone
  Node* parent = nullptr;
  std::map<int64_t, std::unique_ptr<Node>> children = {};  // by the first of their edges
  std::optional<Snapshot> snapshot = {};
  std::list<Node*>::iterator turn = {};  // in recent_, with a snapshot
};

/// Where a key leaves the tree: `within` numbers of the node's edge are its own.
struct PrefixCache::Place {
  Node* node;
  size_t depth, within;
};

PrefixCache::PrefixCache(const model::Model& model, PrefixCacheOptions options)
    : model_(model), options_(options), root_(std::make_unique<Node>()) {
  const model::ModelSpec& spec = model.spec();
  std::string reason = spec.no_state_reason();
  if (reason.empty()) reason = reads_ahead(spec);
  if (!reason.empty())
    fail(ErrorKind::usage, "prefix_cache",
         "this model cannot continue from what another prompt has left: {}; run without a cache",
         reason);
  if (options.budget_bytes < 1 || options.snapshot_every < 0 || options.least < 1)
    fail(ErrorKind::usage, "prefix_cache",
         "budget = {} bytes, snapshot_every = {}, least = {}; expected at least 1, 0 and 1",
         options.budget_bytes, options.snapshot_every, options.least);
  for (const model::BranchState& branch : model::state_layout(spec))
    for (const spec::StateDecl& decl : branch.tensors)
      if (decl.kind == Kinds::fixed || (decl.kind == Kinds::per_token && decl.keep > 0))
        cuts_ = false;
}

PrefixCache::~PrefixCache() = default;

PrefixCache::Key PrefixCache::key_of(const Sequence& sequence, int64_t n, Kind kind) {
  Key key{kind.max_pending, static_cast<int64_t>(kind.kv), kind.angles_until, sequence.salt,
          size_of(sequence.source)};
  key.insert(key.end(), sequence.source.begin(), sequence.source.end());
  key.insert(key.end(), sequence.tokens.begin(), sequence.tokens.begin() + n);
  return key;
}

PrefixCache::Place PrefixCache::descend(const Key& key) const {
  Place place{root_.get(), 0, 0};
  while (place.depth < key.size()) {
    const auto child = place.node->children.find(key[place.depth]);
    if (child == place.node->children.end()) break;
    const Key& edge = child->second->edge;
    const auto rest = key.begin() + static_cast<std::ptrdiff_t>(place.depth);
    const auto end = std::mismatch(edge.begin(), edge.end(), rest, key.end()).first;
    place.node = child->second.get();
    place.within = static_cast<size_t>(end - edge.begin());
    place.depth += place.within;
    if (place.within < edge.size()) break;
  }
  return place;
}

std::optional<PrefixCache::Hit> PrefixCache::find(const Sequence& sequence,
                                                  Kind kind,
                                                  int64_t most) {
  if (sequence.salt == Sequence::kAlone) return std::nullopt;
  const int64_t length = size_of(sequence.tokens), source = size_of(sequence.source);
  const Key key = key_of(sequence, std::min(most, length), kind);
  const auto head = static_cast<int64_t>(kKeyHead) + source;
  const Place place = descend(key);

  // the longest snapshot that is a beginning as a whole
  const Node* whole = place.within < place.node->edge.size() ? place.node->parent : place.node;
  while (whole != nullptr && !whole->snapshot) whole = whole->parent;

  // what is shared with a longer one that can be cut there; the last token is fed for its logits
  const int64_t shared = std::min(static_cast<int64_t>(place.depth) - head, length - 1);
  // no call begins before where all angles change and ends behind it
  const bool possible =
      model::CallPlan(model_.spec()).until(shared + model_.virtual_tokens()) == kind.angles_until;
  if (possible && shared > (whole != nullptr ? whole->snapshot->tokens : -1) &&
      shared + source >= options_.least)
    if (const Node* node = nearest_cuttable(place.node, shared)) {
      touch(node);
      const model::State& state = *node->snapshot->state;
      return Hit{std::make_shared<const model::State>(
                     state.truncated_copy(0, shared + model_.virtual_tokens())),
                 {},
                 shared};
    }
  if (whole == nullptr) return std::nullopt;
  touch(whole);
  return Hit{whole->snapshot->state, whole->snapshot->last, whole->snapshot->tokens};
}

bool PrefixCache::wants(const Sequence& sequence, int64_t n, Kind kind) {
  if (sequence.salt == Sequence::kAlone) return false;
  const Key key = key_of(sequence, n, kind);
  const Place place = descend(key);
  if (place.depth < key.size()) return true;
  const Node* served = nearest_cuttable(place.node, n);
  if (served != nullptr) touch(served);
  return served == nullptr;
}

/// The first snapshot from here on, in width, that can be cut after so many tokens: one of exactly
/// that length, or one that has lost nothing.
const PrefixCache::Node* PrefixCache::nearest_cuttable(const Node* from, int64_t tokens) const {
  std::deque<const Node*> next{from};
  for (; !next.empty(); next.pop_front()) {
    const Node* node = next.front();
    if (node->snapshot && node->snapshot->state->can_truncate(0, tokens + model_.virtual_tokens()))
      return node;
    for (const auto& [first, child] : node->children) next.push_back(child.get());
  }
  return nullptr;
}

void PrefixCache::add(
    const Sequence& sequence, int64_t n, Kind kind, model::State state, Tensor last) {
  require(state.rows() == 1 && state.length(0) == n + model_.virtual_tokens(), "prefix_cache",
          "a snapshot of {} rows for {} tokens", state.rows(), n);
  const int64_t bytes = state.bytes() + bytes_of(last);
  ++stats_.snapshots;
  stats_.snapshot_bytes += bytes;
  if (bytes > options_.budget_bytes) return;
  const Key key = key_of(sequence, n, kind);
  if (const Place place = descend(key);
      place.depth == key.size() && place.within == place.node->edge.size() && place.node->snapshot)
    return touch(place.node);
  // what may throw comes first, here and below: for want of memory a cache is as it was
  state.compact();
  Snapshot made{.last = std::move(last), .tokens = n, .pages = state.all_pages()};
  made.fixed_bytes = state.fixed_bytes() + bytes_of(made.last);
  made.state = std::make_shared<const model::State>(std::move(state));
  for (const nn::Page* page : made.pages) holders_.try_emplace(page, 0);
  std::list<Node*> turn(1);
  Node* node = grow(key);
  turn.front() = node;
  recent_.splice(recent_.begin(), turn);
  node->turn = recent_.begin();
  node->snapshot = std::move(made);
  hold(*node->snapshot);

  // shorter ones that this one serves as well
  for (Node *shorter = node->parent, *above = nullptr; shorter != nullptr; shorter = above) {
    above = shorter->parent;
    if (shorter->snapshot &&
        node->snapshot->state->can_truncate(0, shorter->snapshot->tokens + model_.virtual_tokens()))
      drop(shorter);
  }
  for (; bytes_ > options_.budget_bytes && !recent_.empty(); ++stats_.evictions)
    drop(recent_.back());
}

/// The node of a key, made where there is none.
PrefixCache::Node* PrefixCache::grow(const Key& key) {
  const Place place = descend(key);
  Node* node =
      place.within < place.node->edge.size() ? split(place.node, place.within) : place.node;
  if (place.depth == key.size()) return node;
  Key rest(key.begin() + static_cast<std::ptrdiff_t>(place.depth), key.end());
  auto child = std::make_unique<Node>(Node{std::move(rest), node});
  Node* const made = child.get();
  node->children.emplace(made->edge.front(), std::move(child));
  bytes_ += kTokenBytes * size_of(made->edge);
  return made;
}

/// A node between this one and its parent, with the first `at` numbers of its edge.
PrefixCache::Node* PrefixCache::split(Node* node, size_t at) {
  const auto cut = node->edge.begin() + static_cast<std::ptrdiff_t>(at);
  auto& link = node->parent->children.at(node->edge.front());
  auto upper = std::make_unique<Node>(Node{Key(node->edge.begin(), cut), node->parent});
  auto& below = upper->children[node->edge[at]];
  node->edge.erase(node->edge.begin(), cut);
  node->parent = upper.get();
  below = std::move(link);
  link = std::move(upper);
  return link.get();
}

void PrefixCache::touch(const Node* node) {
  recent_.splice(recent_.begin(), recent_, node->turn);
}

/// Counts the memory of a snapshot that comes: pages that another one holds are there already.
void PrefixCache::hold(const Snapshot& snapshot) {
  for (const nn::Page* page : snapshot.pages)
    if (++holders_.at(page) == 1) bytes_ += page->bytes();
  bytes_ += snapshot.fixed_bytes;
}

/// And of one that goes.
void PrefixCache::release(const Snapshot& snapshot) {
  for (const nn::Page* page : snapshot.pages)
    if (const auto held = holders_.find(page); --held->second == 0) {
      bytes_ -= page->bytes();
      holders_.erase(held);
    }
  bytes_ -= snapshot.fixed_bytes;
}

void PrefixCache::drop(Node* node) {
  release(*node->snapshot);
  recent_.erase(node->turn);
  node->snapshot.reset();
  prune(node);
}

/// Removes what leads nowhere from here up, and joins a node with its only child.
void PrefixCache::prune(Node* node) {
  while (node->parent != nullptr && !node->snapshot && node->children.empty()) {
    Node* parent = node->parent;
    bytes_ -= kTokenBytes * size_of(node->edge);
    const int64_t first = node->edge.front();
    parent->children.erase(first);
    node = parent;
  }
  if (node->parent == nullptr || node->snapshot || node->children.size() != 1) return;
  Key edge = node->edge;
  const Key& behind = node->children.begin()->second->edge;
  edge.insert(edge.end(), behind.begin(), behind.end());
  auto child = std::move(node->children.begin()->second);
  child->edge = std::move(edge);
  child->parent = node->parent;
  node->parent->children.at(child->edge.front()) = std::move(child);
}

void PrefixCache::count_hit(int64_t tokens) {
  ++stats_.hits;
  stats_.cached_tokens += tokens;
}

}  // namespace tessera::infer
