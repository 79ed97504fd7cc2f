// Continuous batching: sequences join and leave between calls of the model. Each row keeps its slot
// in the state. A model without a state is fed whole documents. Prompts are prefilled in chunks
// together with rows that decode. A row's result depends neither on the other rows of the batch,
// nor on how its prompt was chunked, nor on whether a prefix came from the cache.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "tessera/infer/engine/prefix_cache.h"
#include "tessera/infer/engine/shared_prefix.h"
#include "tessera/infer/speculation/draft_tree.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/model.h"
#include "tessera/model/recorded_steps.h"

namespace tessera::infer {

/// Dtype of activations and state: float64 where the weights are, else float32.
at::ScalarType numbers_of(const model::Model& model);

/// Feeds sequences to one model. Owns the state of all rows; the caller owns their tokens.
/// Used by one thread at a time. step() throws what the model throws and leaves the rows of that
/// call invalid: restart() or drop() them. Rows that were in no failing call are unchanged.
class Batcher {
 public:
  struct Options {
    int64_t max_pending = 0;                 // max. pending (uncommitted) tokens of a row
    PrefixCache* cache = nullptr;            // of this model; must outlive the batcher
    spec::KvOptions kv;                      // storage type and eviction of the KV cache
    const CancelToken* cancel = nullptr;     // a cancelled call invalidates the rows in it
    nn::StatisticSink statistics = nullptr;  // receives the model's statistics
    int64_t layers = 0;                      // run only the first layers, needs a state; 0 = all
  };
  Batcher(const model::Model& model, const Options& options);

  /// Adds a row without tokens. Its slot is taken until drop().
  size_t add();
  void drop(size_t row);
  /// Starts a row without tokens from the state of one row and the hidden state [D] of the last
  /// token in it. `last` is needed where the whole sequence is in the state already.
  void resume(size_t row, const model::State& state, const Tensor& last);
  /// Discards what a row has been fed, so that the next step computes it again.
  void restart(size_t row);
  /// Row rows[i] becomes a copy of row rows[parents[i]] (beam search).
  void reorder_rows(std::span<const size_t> rows, std::span<const size_t> parents);

  /// The input of one row: its sequence, which extends that of the last call, followed by draft
  /// tokens. Draft tokens stay pending until keep(); so does the last token before them, if it is
  /// fed in the same call. Only tokens before `own` may come from the cache or from another row.
  struct Work {
    size_t row = 0;
    const Sequence* sequence = nullptr;
    DraftTree drafts = {};
    int64_t own = PrefixCache::kAll;
    /// Without a state only: any token may change before the next call, so all tokens stay pending
    /// (Mask-Predict).
    bool whole = false;
  };
  /// One call of the model with at most `budget` tokens. Rows with one token left or with draft
  /// tokens are always included. The rest of the budget goes to prompts, the one with the fewest
  /// tokens left first, but at least half of it to the oldest prompt. At least one row advances. A
  /// row whose rotary angles change at its length (dynamic RoPE scaling) is computed again in one
  /// chunk.
  void step(std::span<const Work> work, int64_t budget);
  /// True if at most one token of the sequence is left to feed.
  bool decodes(const Work& work) const;
  /// True if all tokens of the sequence, draft tokens included, have been fed.
  bool ready(const Work& work) const;
  /// Hidden state of the last token [1, D] of a row that is ready, or of all its pending tokens
  /// [pending, D].
  Tensor hidden(size_t row) const;
  /// Encoder output for a row's source. Only rows without a state have it.
  const nn::Encoded& encoded(size_t row) const { return *rows_[row].encoded; }
  /// Number of tokens of a row that keep() has not decided on.
  int64_t pending(size_t row) const { return rows_[row].pending(); }
  /// Commits the first n pending tokens of a row and discards the others.
  void keep(size_t row, int64_t n);
  /// Commits the last token of the sequence and these accepted draft tokens, in ascending order.
  void keep(size_t row, const std::vector<int64_t>& drafts);
  /// True if the rotary angles of all positions change at the sequence's length: the next step
  /// computes the row again.
  bool changes(size_t row, const Sequence& sequence) const;

  /// Hidden states [N, D] of the tokens of a row from number `begin` on.
  struct Fed {
    size_t row = 0;
    int64_t begin = 0;
    Tensor hidden_ND;
  };
  /// Output of the last call, without pending tokens.
  const std::vector<Fed>& fed() const { return fed_; }
  /// Rows of the last call, its tokens, and the tokens of the sources that it encoded.
  const std::vector<size_t>& called() const { return called_; }
  int64_t called_tokens() const { return called_tokens_; }
  int64_t called_source_tokens() const { return called_source_tokens_; }
  /// Stores a row's state in the prefix cache, if there is one.
  void cache_prefix(size_t row, const Sequence& sequence);
  /// Tokens of a row, source included, that came from a cache or another row.
  int64_t reused(size_t row) const { return rows_[row].reused; }
  /// A copy of this row's state, for resume(); empty where the model has no state.
  model::State state(size_t row) const;
  const Tensor& last(size_t row) const { return rows_[row].last; }
  const model::CallPlan& calls() const { return calls_; }
  /// Position of the next token of a row with `tokens` tokens: the model's virtual tokens come
  /// first.
  int64_t place(int64_t tokens) const { return tokens + virtual_; }
  /// State of all slots, free ones included.
  const model::State& state() const { return state_; }
  /// Recorded decoding steps on a device; null where there are none.
  const model::RecordedSteps* recorded() const { return recorded_.get(); }

 private:
  struct Row {
    bool used = false;
    int64_t fed = 0, reused = 0;              // fed: without pending tokens
    Tensor last;                              // [D], hidden state of the last token fed
    Tensor ahead;                             // [pending, D]
    std::optional<nn::Encoded> encoded = {};  // only of a row without a state
    // during prefill:
    bool fresh = true, sought = false;
    std::optional<Wait> wait = {};
    std::set<int64_t> stops = {};  // calls end at these lengths to take a snapshot
    int64_t pending() const { return ahead.defined() ? ahead.size(0) : 0; }
  };
  void whole(std::span<const Work> work, int64_t budget);
  /// The encoder output of the rows' sources; each source is encoded once and kept.
  nn::Encoded encoded_once(const std::vector<const Work*>& works);
  /// Encodes the sources of some sequences for the rows `readers` of the next call.
  nn::Encoded encode(const std::vector<const Sequence*>& sequences,
                     const std::vector<int64_t>& readers) const;
  /// True if the sequence is longer than the first length at which rotary angles change.
  bool far(const Sequence& sequence) const;
  PrefixCache::Kind kind_after(int64_t n) const;
  /// Starts new rows from the prefix cache, or lets them wait for a row with the same prefix.
  void share(std::span<const Work> work);
  void plan_stops(size_t row, const Sequence& sequence);
  /// Called when a row has been fed up to a stop: takes the snapshot and starts the waiting rows.
  void settle(size_t row, const Sequence& sequence);
  void snapshot(size_t row, const Sequence& sequence);
  /// Number of virtual tokens in a call that feeds a row's tokens from `begin` on.
  int64_t virtual_at(int64_t begin) const { return begin == 0 ? virtual_ : 0; }
  void begin_with(size_t row, const model::State& state, int64_t from_row, const Tensor& last);
  int64_t given(const Sequence& sequence) const;
  /// Number of tokens of a row in the next call.
  int64_t room(const Work& work, int64_t left, int64_t budget) const;
  struct Call;
  void plan(Call& call, const Work& work, int64_t budget) const;
  void plan_prompts(Call& call, std::vector<const Work*>& prompts, int64_t budget) const;
  void run(const Call& call);

  const model::Model& model_;
  Options options_;
  model::CallPlan calls_;
  bool stateful_;
  int64_t virtual_;             // virtual tokens at the beginning of every row
  std::unique_ptr<model::RecordedSteps> recorded_;  // outlives the rows that are in its memory
  model::State empty_, state_;                      // empty_: of one row
  std::vector<Row> rows_;
  size_t first_free_ = 0;  // no row before it is unused
  std::vector<Fed> fed_;
  std::vector<size_t> called_;
  int64_t called_tokens_ = 0, called_source_tokens_ = 0;
};

}  // namespace tessera::infer
