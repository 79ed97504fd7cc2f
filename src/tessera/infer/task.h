// What the engine asks of a request while it runs: which rows it has, and how they go on.
#pragma once

#include <memory>
#include <span>

#include "tessera/infer/request.h"
#include "tessera/text/tokenizer.h"

namespace tessera::infer {

class Task {
 public:
  virtual ~Task() = default;

  bool done() const { return !result_.finish_reason.empty(); }
  Generation& result() { return result_; }
  /// What each of its rows has read and said.
  virtual std::vector<const Sequence*> rows() const = 0;
  /// Guesses of which it makes use, for its only row; 0 = none.
  virtual int64_t may_guess() const { return 0; }
  /// The token after `tokens`, which may be guesses: a function of these, logits and seed alone.
  virtual int64_t guess(std::span<const float> logits, const std::vector<int64_t>& tokens) const;
  /// Decides on what follows each row, [rows, C], or its only row and each of its guesses,
  /// [1 + guesses, C] (float, contiguous, on the CPU). Other tasks may decide at the same time.
  virtual void choose(const Tensor& logits, const std::vector<int64_t>& guesses) = 0;
  /// What became of it: row i continues row parents[i], and so many guesses were right.
  struct Outcome {
    std::vector<size_t> parents;
    int64_t right = 0;
  };
  /// Takes over what choose() decided, and tells who listens. The rows of a task that is done are
  /// what they were.
  virtual Outcome take() = 0;
  /// Ends it from outside.
  virtual void finish(const char* reason) = 0;
  void fail_with(std::exception_ptr error);
  /// So many tokens of what it read were not computed.
  void book(int64_t reused) { result_.cached_tokens = std::min(reused, result_.prompt_tokens); }

 protected:
  Generation result_;
};

/// One row that samples.
std::unique_ptr<Task> make_writer(const model::ModelSpec& spec,
                                  const text::Tokenizer* tokenizer,
                                  const Request& request);
/// Rows side by side, of which the best is wanted.
std::unique_ptr<Task> make_search(const model::ModelSpec& spec,
                                  const text::Tokenizer* tokenizer,
                                  const Request& request);

}  // namespace tessera::infer
