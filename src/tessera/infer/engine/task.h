// What the engine asks of a request while it runs: which rows it has, and how they go on.
#pragma once

#include <memory>
#include <span>

#include "tessera/infer/engine/request.h"
#include "tessera/infer/speculation/draft_tree.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::infer {

class Task {
 public:
  /// The model, which is asked for the request's targets, must outlive it.
  Task(const model::Model& model, const Request& request);
  virtual ~Task() = default;

  /// First token whose hidden state it wants; behind all where it wants none.
  int64_t wants_from() const;
  /// Takes hidden states [n, D] of what it begins with, from token `begin` on, as they are made.
  void on_hidden(int64_t begin, const Tensor& hidden_ND);
  /// All that it begins with has been read. It is done then if it has nothing to say.
  void begin();

  bool done() const { return !result_.finish_reason.empty(); }
  Generation& result() { return result_; }
  /// What each of its rows has read and said.
  virtual std::vector<const Sequence*> rows() const = 0;
  /// Guesses of which it makes use, for its only row; 0 = none.
  virtual int64_t max_draft_tokens() const { return 0; }
  /// The token after `tokens`, which may be guesses: a function of these, logits and seed alone.
  virtual int64_t draft_token(std::span<const float> logits,
                              const std::vector<int64_t>& tokens) const;
  /// Whether a row is a text that may change at any place: it is fed whole, and the logits are
  /// those of all its tokens.
  virtual bool whole() const { return false; }
  /// Of whole rows: takes what the encoder made of the source, before it first chooses.
  virtual void read_source(const nn::Encoded&) {}
  /// Decides on what follows each row, [rows, C], or its only row and each of its guesses,
  /// [1 + guesses, C] (float, contiguous, on the CPU). Other tasks may decide at the same time.
  virtual void choose(const Tensor& logits, const DraftTree& drafts) = 0;
  /// What became of it: row i continues row parents[i], and these guesses were right, each the
  /// child of the one before.
  struct Outcome {
    std::vector<size_t> parents;
    std::vector<int64_t> accepted = {};
    bool anew = false;  // its only row has other tokens than it was fed
  };
  /// Takes over what choose() decided, and tells who listens. The rows of a task that is done are
  /// what they were.
  virtual Outcome take() = 0;
  /// Ends it from outside.
  virtual void finish(const char* reason) = 0;
  void fail_with(std::exception_ptr error);
  /// So many tokens of what it read were not computed.
  void book(int64_t reused);

 protected:
  /// Ends it if it has nothing to say. Called once more, by the task itself, where no targets are
  /// to be heard first.
  virtual void open() = 0;
  bool wants_targets() const { return scorer_.has_value(); }
  Generation result_;

 private:
  Targets targets_;
  int64_t heard_;                 // up to which token
  std::optional<Scorer> scorer_;  // until all are heard
  std::function<void(int64_t)> on_read_;
};

/// One row that samples.
std::unique_ptr<Task> make_sampling_task(const model::Model& model,
                                         const text::Tokenizer* tokenizer,
                                         const Request& request);
/// Rows side by side, of which the best is wanted.
std::unique_ptr<Task> make_beam_task(const model::Model& model,
                                     const text::Tokenizer* tokenizer,
                                     const Request& request);
/// Texts of several lengths that are filled in and masked in turns, of which the best is wanted.
std::unique_ptr<Task> make_mask_predict(const model::Model& model,
                                        const text::Tokenizer* tokenizer,
                                        const Request& request);

}  // namespace tessera::infer
