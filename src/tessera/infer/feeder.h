// Feeds sequences to a model, as far as each has not been fed yet: with a state where the model has
// one, else as whole documents. Sequences may be copied, dropped and reordered between calls
// (beams). What a row gets does not depend on the rows beside it, nor on how it was cut into calls.
#pragma once

#include <optional>
#include <vector>

#include "tessera/model/model.h"

namespace tessera::infer {

/// Tokens in order. Beside an encoder they are the target, and `source` is what the encoder reads.
struct Sequence {
  std::vector<int64_t> source, tokens;
};

class Feeder {
 public:
  /// prefill_chunk: tokens per call over all rows, sources included; at least one row always fits.
  /// max_pending: most tokens of a row in one call of ahead(). kv: of its states.
  Feeder(const model::Model& model,
         size_t rows,
         int64_t prefill_chunk,
         const CancelToken* cancel,
         int64_t max_pending = 0,
         const spec::KvOptions& kv = {});

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

 private:
  Tensor whole(const std::vector<size_t>& active, const std::vector<const Sequence*>& rows);
  /// The sources of some rows, read by the rows `readers` of the call that follows.
  nn::Encoded encode(const std::vector<size_t>& which,
                     const std::vector<int64_t>& readers,
                     const std::vector<const Sequence*>& rows) const;
  model::State fresh(int64_t rows) const;
  void restart(size_t row);
  /// One call; returns how many rows are complete.
  size_t feed_some(const std::vector<size_t>& active,
                   const std::vector<const Sequence*>& rows,
                   std::vector<Tensor>& last);

  const model::Model& model_;
  int64_t prefill_chunk_, max_pending_;
  spec::KvOptions kv_;
  const CancelToken* cancel_;
  bool stateful_;
  model::State state_;
  std::vector<int64_t> fed_;
  std::vector<std::optional<nn::Encoded>> encoded_;  // of rows without a state
};

}  // namespace tessera::infer
