// Feeds rows to a model, one call at a time: with a state where the model has one, else as whole
// documents. Rows come and go between calls, and each keeps its slot; beside rows that decode,
// prompts are fed in cuts. What a row gets does not depend on the rows beside it, nor on how it was
// cut into calls, nor on whether its beginning came out of a cache.
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

namespace tessera::infer {

/// What a model computes in, and a state keeps: doubles where weights are.
at::ScalarType numbers_of(const model::Model& model);

class Batcher {
 public:
  struct Options {
    int64_t max_pending = 0;                 // most tokens of a row that keep() has not decided on
    PrefixCache* cache = nullptr;            // of this model; must outlive the batcher
    spec::KvOptions kv;                      // how keys and values are kept
    const CancelToken* cancel = nullptr;     // of all rows: a call that it ends spoils those in it
    nn::StatisticSink statistics = nullptr;  // takes what parts count
    int64_t layers = 0;  // only the first ones, of a model with a state; 0 = all
  };
  Batcher(const model::Model& model, const Options& options);

  /// The slot of a fresh row, its own until drop().
  size_t add();
  void drop(size_t row);
  /// A fresh row goes on from a state of one row, and the hidden state [D] of the last token in it
  /// (needed where nothing is left to feed).
  void resume(size_t row, const model::State& state, const Tensor& last);
  /// Forgets what a row has been fed: it is computed anew.
  void restart(size_t row);
  /// Row rows[i] becomes a copy of what rows[parents[i]] was.
  void reorder_rows(std::span<const size_t> rows, std::span<const size_t> parents);

  /// What a row is fed: its sequence, which goes on from what it was in the last call, and guesses
  /// behind it. The guesses, and in a call that has both the last token before them, stay pending
  /// until keep(). Of the tokens before `own` it may take over what others have computed.
  struct Work {
    size_t row = 0;
    const Sequence* sequence = nullptr;
    DraftTree drafts = {};
    int64_t own = PrefixCache::kAll;
    /// Of a model without a state: any of its tokens may be others in the next call, so that all of
    /// them stay pending.
    bool whole = false;
  };
  /// One call of the model, with at most `budget` tokens: rows with one token left, or with
  /// guesses, all take part; what is left of the budget goes to the others, by how little they have
  /// left, and half of it to the first of them at least. At least one row goes on. A row whose
  /// angles change is computed anew, in one piece.
  void step(std::span<const Work> work, int64_t budget);
  /// Whether no more than one token of its sequence is left.
  bool decodes(const Work& work) const;
  /// Whether all of it has been fed.
  bool ready(const Work& work) const;
  /// Hidden states of the last token [1, D] of a row that is ready, or of all its pending ones.
  Tensor hidden(size_t row) const;
  /// What the encoder made of a row's source, which it has read without a state.
  const nn::Encoded& encoded(size_t row) const { return *rows_[row].encoded; }
  /// Tokens of a row that keep() is to decide on.
  int64_t pending(size_t row) const { return rows_[row].pending(); }
  /// The first n pending tokens of a row are its own, the rest go.
  void keep(size_t row, int64_t n);
  /// So are the last token that it was sure of and these guesses behind it, ascending.
  void keep(size_t row, const std::vector<int64_t>& drafts);
  /// Whether the row has come to where all angles change: the next step computes it anew.
  bool changes(size_t row, const Sequence& sequence) const;

  /// Hidden states of tokens of a row from number `begin` on.
  struct Fed {
    size_t row = 0;
    int64_t begin = 0;
    Tensor hidden_ND;
  };
  /// What the last call made of its tokens, pending ones apart.
  const std::vector<Fed>& fed() const { return fed_; }
  /// The rows of the last call, its tokens, and those of the sources that it read.
  const std::vector<size_t>& called() const { return called_; }
  int64_t called_tokens() const { return called_tokens_; }
  int64_t called_source_tokens() const { return called_source_tokens_; }
  /// Puts what a row has seen into the cache, where there is one.
  void cache_prefix(size_t row, const Sequence& sequence);
  /// Tokens of the row, its source included, that it did not have to compute: resumed, or shared.
  int64_t reused(size_t row) const { return rows_[row].reused; }
  /// What resume() takes: a state of this row alone, none where the model has none.
  model::State state(size_t row) const;
  const Tensor& last(size_t row) const { return rows_[row].last; }
  const model::CallPlan& calls() const { return calls_; }
  /// Where the next token of a row of so many stands: behind the model's virtual tokens.
  int64_t place(int64_t tokens) const { return tokens + virtual_; }
  /// Of all slots, empty ones too.
  const model::State& state() const { return state_; }

 private:
  struct Row {
    bool used = false;
    int64_t fed = 0, reused = 0;              // fed: pending ones apart
    Tensor last;                              // [D], hidden state of the last token fed
    Tensor ahead;                             // [pending, D]
    std::optional<nn::Encoded> encoded = {};  // of a row without a state
    // while its prompt is fed:
    bool fresh = true, sought = false;
    std::optional<Wait> wait = {};
    std::set<int64_t> stops = {};  // calls end here, so that a snapshot can be taken
    int64_t pending() const { return ahead.defined() ? ahead.size(0) : 0; }
  };
  void whole(std::span<const Work> work, int64_t budget);
  /// Of the sources of the rows that documents belong to, each encoded once.
  nn::Encoded encoded_once(const std::vector<const Work*>& works);
  /// The sources of some rows, read by the rows `readers` of the call that follows.
  nn::Encoded encode(const std::vector<const Sequence*>& sequences,
                     const std::vector<int64_t>& readers) const;
  /// Whether it is longer than the first length where angles change.
  bool far(const Sequence& sequence) const;
  PrefixCache::Kind kind_after(int64_t n) const;
  /// Rows not begun yet begin with what the cache has of them, or wait for each other.
  void share(std::span<const Work> work);
  void plan_stops(size_t row, const Sequence& sequence);
  /// A row has come to where others wait for it, or a snapshot is due.
  void settle(size_t row, const Sequence& sequence);
  void snapshot(size_t row, const Sequence& sequence);
  /// Virtual tokens of a call that a row's tokens from `begin` on are in.
  int64_t virtual_at(int64_t begin) const { return begin == 0 ? virtual_ : 0; }
  void begin_with(size_t row, const model::State& state, int64_t from_row, const Tensor& last);
  int64_t given(const Sequence& sequence) const;
  /// Tokens of a row in the next call.
  int64_t room(const Work& work, int64_t left, int64_t budget) const;
  struct Call;
  void plan(Call& call, const Work& work, int64_t budget) const;
  void plan_prompts(Call& call, std::vector<const Work*>& prompts, int64_t budget) const;
  void run(const Call& call);

  const model::Model& model_;
  Options options_;
  model::CallPlan calls_;
  bool stateful_;
  int64_t virtual_;             // tokens that every row of the state begins with
  model::State empty_, state_;  // empty_: of one row
  std::vector<Row> rows_;
  size_t first_free_ = 0;  // no row before it is unused
  std::vector<Fed> fed_;
  std::vector<size_t> called_;
  int64_t called_tokens_ = 0, called_source_tokens_ = 0;
};

}  // namespace tessera::infer
