// Prefix caching: states of earlier prompts, found by their tokens. A prompt that shares a prefix
// with an earlier one resumes from that state. The output is bit-identical to a run without a
// cache, because a row's bits depend neither on the batch nor on the chunking.
//
// Where a state can be resumed:
//   - attention (KV cache, latents): at any position of a snapshot; the longest one serves all its
//     prefixes;
//   - states of fixed size (recurrent, hybrid) and ring buffers that have overwritten entries
//   (window
//     attention, segment memories): only where a snapshot was taken, which is at the end of a
//     prompt, where prompts of one batch diverge, and every `snapshot_every` tokens;
//   - encoder-decoder models: as above, for the same source.
// Snapshots are in a radix tree of tokens; the least recently used one is evicted when the bytes
// exceed the budget. A snapshot includes the hidden state of its last token, so a repeated prompt
// needs no computation.
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
  int64_t snapshot_every = 256;  // tokens between snapshots of states that cannot be truncated; 0 =
                                 // only at the end of a prompt
  int64_t least =
      16;  // min. shared tokens, sources included: below that, computing is faster than copying
};

/// Counters over the life of a cache.
struct PrefixCacheStats {
  int64_t hits = 0;            // rows that resumed from a snapshot or from a row of their batch
  int64_t cached_tokens = 0;   // tokens of these rows that were not computed, sources included
  int64_t snapshots = 0;       // taken, also those that were not stored
  int64_t snapshot_bytes = 0;  // their bytes, pages shared between snapshots counted each time
  int64_t evictions = 0;
};

/// LRU cache of states of one model, which must outlive it; owns its snapshots. Not thread-safe.
/// bytes() stays within the budget after every add(). If add() throws for want of memory, the cache
/// is unchanged.
class PrefixCache {
 public:
  /// Throws Error(usage) for a model whose rows cannot resume from another row's state, and for
  /// options out of range.
  PrefixCache(const model::Model& model, PrefixCacheOptions options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// What two states must have in common: rows share only with rows of the same kind and the same
  /// salt (sequence.h).
  struct Kind {
    int64_t max_pending = 0;  // capacity of the state for pending tokens
    spec::KvType kv = spec::KvType::f32;
    int64_t angles_until = nn::kAnglesStay;  // length up to which the rotary angles hold
  };
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  struct Hit {
    std::shared_ptr<const model::State> state;  // one row
    Tensor last;  // [D], hidden state of its last token; undefined if the state was truncated
    int64_t tokens = 0;  // tokens in the state
  };
  /// The longest usable prefix of the sequence: the whole sequence if its last hidden state is
  /// known, otherwise at most all tokens except the last. Never more than `most` tokens.
  std::optional<Hit> find(const Sequence& sequence, Kind kind, int64_t most = kAll);
  /// True if a snapshot of the first n tokens would add anything. Otherwise marks the snapshot that
  /// covers it as used.
  bool wants(const Sequence& sequence, int64_t n, Kind kind);
  /// Stores the state (one row) after the first n tokens of the sequence.
  void add(const Sequence& sequence, int64_t n, Kind kind, model::State state, Tensor last);

  const model::Model& model() const { return model_; }
  const PrefixCacheOptions& options() const { return options_; }
  const PrefixCacheStats& stats() const { return stats_; }
  /// True if states of this model can be truncated at any token, whatever their length.
  bool cuts() const { return cuts_; }
  /// Bytes of the snapshots, shared pages counted once, and of the keys.
  int64_t bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(recent_.size()); }
  /// Counts a row that resumed with `tokens` tokens.
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
  std::list<Node*> recent_;  // nodes with a snapshot, most recently used first
  std::unordered_map<const nn::Page*, int64_t> holders_;  // number of snapshots that hold a page
  int64_t bytes_ = 0;
};

}  // namespace tessera::infer
