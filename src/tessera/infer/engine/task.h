// The decoding strategy of one request: its rows, and how they continue.
#pragma once

#include <memory>
#include <span>

#include "tessera/infer/engine/request.h"
#include "tessera/infer/speculation/draft_tree.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {

/// Owned by the engine, one per request; owns the rows' tokens and the result. Used by one thread
/// at a time; choose() of different tasks runs in parallel. After an exception of a task or its
/// callbacks the engine ends it with fail_with(); other tasks are not affected.
class Task {
 public:
  /// The model must outlive the task; it scores the request's targets.
  Task(const model::Model& model, const Request& request);
  virtual ~Task() = default;

  /// Number of the first prompt token whose hidden state is needed; past the last token if none is.
  int64_t wants_from() const;
  /// Receives hidden states [n, D] of prompt tokens from number `begin` on, as they are computed.
  void on_hidden(int64_t begin, const Tensor& hidden_ND);
  /// Called when the whole prompt has been fed. The task is done then if it generates nothing.
  void begin();

  bool done() const { return !result_.finish_reason.empty(); }
  Generation& result() { return result_; }
  /// Prompt and generated tokens of each row.
  virtual std::vector<const Sequence*> rows() const = 0;
  /// Max. number of draft tokens that it can use after its only row; 0 = none.
  virtual int64_t max_draft_tokens() const { return 0; }
  /// The choice after `tokens`, which may end with draft tokens: depends on these, logits and seed
  /// only.
  virtual int64_t draft_token(std::span<const float> logits,
                              const std::vector<int64_t>& tokens) const;
  /// True if any token of a row may change (Mask-Predict): the row is fed whole, and choose() gets
  /// the logits of all its tokens.
  virtual bool whole() const { return false; }
  /// Whole rows only: receives the encoder output of the source before the first choose().
  virtual void read_source(const nn::Encoded&) {}
  /// Chooses the next token of each row, logits [rows, C], or of its only row and each of its draft
  /// tokens, [1 + drafts, C] (float32, contiguous, on the CPU). Tasks choose in parallel.
  virtual void choose(const Tensor& logits, const DraftTree& drafts) = 0;
  /// Whether the choice of its only row, and of each of `drafts` tokens after it, is the most
  /// likely token: a device then chooses, and its logits are not copied.
  virtual bool takes_most_likely(int64_t) const { return false; }
  /// choose() by the most likely token of each, [1 + drafts]; only where takes_most_likely().
  virtual void choose_most_likely(std::span<const int64_t>, const DraftTree&) {}
  /// The result of a step: row i continues row parents[i], and the indices of the accepted draft
  /// tokens, each the child of the one before.
  struct Outcome {
    std::vector<size_t> parents;
    std::vector<int64_t> accepted = {};
    bool replaced = false;  // the tokens of its only row have been replaced (context shift)
  };
  /// Applies the choice of choose() and calls the callbacks. The rows of a finished task stay as
  /// they were.
  virtual Outcome take() = 0;
  /// Ends the task from outside, with this finish reason.
  virtual void finish(const char* reason) = 0;
  void fail_with(std::exception_ptr error);
  /// Number of prompt tokens that were not computed.
  void book(int64_t reused);

 protected:
  /// Ends the task if it generates nothing. A subclass without targets does this itself in its
  /// constructor as well.
  virtual void open() = 0;
  bool wants_targets() const { return scorer_.has_value(); }
  Generation result_;

 private:
  Targets targets_;
  int64_t next_target_;           // number of the next token to score
  std::optional<Scorer> scorer_;  // until all targets are scored
  std::function<void(int64_t)> on_read_;
};

/// Sampling or greedy decoding, one row.
std::unique_ptr<Task> make_sampling_task(const model::Model& model,
                                         const text::Tokenizer* tokenizer,
                                         const Request& request);
/// Beam search, several rows (beam.h).
std::unique_ptr<Task> make_beam_task(const model::Model& model,
                                     const text::Tokenizer* tokenizer,
                                     const Request& request);
/// Mask-Predict with several length candidates (mask_predict.h).
std::unique_ptr<Task> make_mask_predict(const model::Model& model,
                                        const text::Tokenizer* tokenizer,
                                        const Request& request);

}  // namespace tessera::infer
