// Feeds sequences to a model, as far as each has not been fed yet: with a state where the model has
// one, else as whole documents. Sequences may be copied, dropped and reordered between calls
// (beams). What a row gets does not depend on the rows beside it, nor on how it was cut into calls,
// nor on whether its beginning came out of a cache.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "tessera/infer/prefix_cache.h"
#include "tessera/infer/shared_prefix.h"
#include "tessera/model/model.h"

namespace tessera::infer {

class Feeder {
 public:
  struct Options {
    int64_t prefill_chunk =
        1024;  // tokens per call over all rows, sources included; at least one row always fits
    const CancelToken* cancel = nullptr;
    int64_t max_pending = 0;       // most tokens of a row in one call of ahead()
    PrefixCache* cache = nullptr;  // of this model; must outlive the feeder
    spec::KvOptions kv;            // how keys and values are kept
  };
  Feeder(const model::Model& model, size_t rows, const Options& options);

  /// A fresh row goes on from a state of one row, and the hidden state [D] of the last token in it
  /// (needed where nothing is left to feed).
  void resume(size_t row, const model::State& state, const Tensor& last);

  /// Logits after the last token of each of the given rows, [active, vocab]. rows[r] continues what
  /// it was in the last call.
  Tensor next(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows);
  /// Whether a row has come to where all angles change, so that next() must compute it anew.
  bool changes(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows) const;
  /// Logits after the last token of each row, the only one not fed yet, and after each of its
  /// guesses, [1 + guesses, vocab]. All of these stay pending until keep().
  std::vector<Tensor> ahead(const std::vector<size_t>& active,
                            const std::vector<const Sequence*>& rows,
                            const std::vector<std::vector<int64_t>>& guesses);
  /// The first n tokens of the row's last ahead() are its own.
  void keep(size_t row, int64_t n);
  /// Row i becomes a copy of what row parents[i] was.
  void arrange(const std::vector<size_t>& parents);

  /// Puts what the rows have seen into the cache, where there is one.
  void remember(const std::vector<const Sequence*>& rows);
  /// Tokens of the row, its source included, that it did not have to compute: resumed, or shared.
  int64_t reused(size_t row) const { return rows_[row].reused; }
  /// What resume() takes, of all rows; no state where the model has none.
  const model::State& state() const { return state_; }
  const Tensor& last(size_t row) const { return rows_[row].last; }

 private:
  struct Row {
    int64_t fed = 0, reused = 0;
    Tensor last;                              // [D], hidden state of the last token fed
    Tensor ahead;                             // [1 + guesses, D], pending
    std::optional<nn::Encoded> encoded = {};  // of a row without a state
    // while a prompt is fed:
    bool fresh = false;
    std::optional<Wait> wait = {};
    std::set<int64_t> stops = {};  // calls end here, so that a snapshot can be taken
  };
  Tensor whole(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows);
  /// The sources of some rows, read by the rows `readers` of the call that follows.
  nn::Encoded encode(const std::vector<size_t>& which,
                     const std::vector<int64_t>& readers,
                     const std::vector<const Sequence*>& rows) const;
  model::State fresh(int64_t rows) const;
  void restart(size_t row);
  bool changes(size_t row, const Sequence& sequence) const;
  /// Whether it is longer than the first length where angles change.
  bool far(const Sequence& sequence) const;
  PrefixCache::Kind kind_after(int64_t n) const;
  /// Rows not begun yet begin with what the cache has of them, or wait for each other.
  void share(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows);
  void plan_stops(size_t row, const Sequence& sequence);
  /// A row has come to where others wait for it, or a snapshot is due.
  void settle(size_t row, const std::vector<const Sequence*>& rows);
  void snapshot(size_t row, const Sequence& sequence);
  void begin_with(size_t row, const model::State& state, int64_t from_row, const Tensor& last);
  /// One call.
  void feed_some(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows);
  Tensor run(const nn::Batch& batch, const nn::Encoded* encoded, bool pending);

  const model::Model& model_;
  Options options_;
  bool stateful_;
  model::State state_;
  std::vector<Row> rows_;
};

}  // namespace tessera::infer
