// States of what was computed before, by the tokens that led to them: a prompt that begins like an
// earlier one continues from there. The text is that of a run without a cache, bit for bit, since
// a row's bits depend neither on its company nor on how it was cut into calls.
//
// What can be resumed where:
//   - states of tokens alone (attention, latents): at any position of a snapshot, of which the
//     longest serves all its beginnings;
//   - states with tensors of fixed size (recurrent, hybrid), and rings that have let go of their
//     first entries (windows, memories over segments): only where a snapshot was taken, that is at
//     the end of a prompt, where prompts of one batch part, and every `snapshot_every` tokens;
//   - beside an encoder: as above, for the same source.
// Snapshots lie in a radix tree of tokens; the one used longest ago goes first when their bytes
// exceed the budget. A snapshot keeps the hidden state of its last token, so that a prompt seen
// before costs nothing at all.
#pragma once

#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tessera/infer/engine/sequence.h"
#include "tessera/model/model.h"
#include "tessera/nn/rope_scaling/rope_scaling_config.h"

namespace tessera::infer {

struct PrefixCacheOptions {
  int64_t budget_bytes = int64_t{256} << 20;
  int64_t snapshot_every = 256;  // tokens, for states that cannot be cut; 0 = not within a prompt
  int64_t least = 16;  // tokens (sources included) that must be shared: fewer are computed faster
                       // than they are copied
};

/// Counted over the life of a cache.
struct PrefixCacheStats {
  int64_t hits = 0;           // rows that began with a snapshot, or with another row of their batch
  int64_t cached_tokens = 0;  // that were not computed for them, sources included
  int64_t snapshots = 0;      // taken
  int64_t snapshot_bytes = 0;  // that these hold, as if they shared no pages
  int64_t evictions = 0;
};

/// Belongs to one model, which must outlive it. Not for several threads at once.
class PrefixCache {
 public:
  /// Throws Error(usage) for a model whose rows cannot continue from what another one saw, and for
  /// options out of range.
  PrefixCache(const model::Model& model, PrefixCacheOptions options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// What states must have in common to follow each other: rows of one kind, and of one salt
  /// (sequence.h), only share with each other.
  struct Kind {
    int64_t max_pending = 0;  // of the states
    spec::KvType kv = spec::KvType::f32;
    int64_t angles_until = nn::kAnglesStay;  // of their sequences
  };
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  struct Hit {
    std::shared_ptr<const model::State> state;  // one row
    Tensor last;         // [D], hidden state of its last token; undefined where it was cut
    int64_t tokens = 0;  // that it holds
  };
  /// The longest usable beginning of the sequence: all of it where its last hidden state is known,
  /// else one token less at most; no more than the first `most` tokens.
  std::optional<Hit> find(const Sequence& sequence, Kind kind, int64_t most = kAll);
  /// Whether a snapshot of the first n tokens adds anything; touches what makes it needless.
  bool wants(const Sequence& sequence, int64_t n, Kind kind);
  /// Keeps the state (of one row) after the first n tokens of the sequence.
  void add(const Sequence& sequence, int64_t n, Kind kind, model::State state, Tensor last);

  const model::Model& model() const { return model_; }
  const PrefixCacheOptions& options() const { return options_; }
  const PrefixCacheStats& stats() const { return stats_; }
  /// Whether a state of this model can be cut at any of its tokens, however long it is.
  bool cuts() const { return cuts_; }
  /// Memory of the snapshots, pages that several of them share once, and of the tokens that lead to
  /// them.
  int64_t bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(recent_.size()); }
  /// Books a row that began with `tokens` that were not computed for it.
  void count_hit(int64_t tokens);

 private:
  struct Snapshot;
  struct Node;
  struct Place;
  using Key = std::vector<int64_t>;

  static Key key_of(const Sequence& sequence, int64_t n, Kind kind);
  Place descend(const Key& key) const;
  Node* grow(const Key& key);
  Node* split(Node* node, size_t at);
  const Node* nearest_cuttable(const Node* from, int64_t tokens) const;
  void touch(const Node* node);
  void hold(const Snapshot& snapshot);
  void release(const Snapshot& snapshot);
  void drop(Node* node);
  void prune(Node* node);

  const model::Model& model_;
  PrefixCacheOptions options_;
  PrefixCacheStats stats_;
  bool cuts_ = true;
  std::unique_ptr<Node> root_;
  std::list<Node*> recent_;  // those with a snapshot, the last used first
  std::unordered_map<const nn::Page*, int64_t> holders_;  // how many snapshots a page belongs to
  int64_t bytes_ = 0;
};

}  // namespace tessera::infer
