// Answers out of windows of a text, from the logits of where they begin and end.
// Devlin et al. 2018, arXiv:1810.04805, sec. 4.2 and 4.3. Torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/text/tokenizer/answer_windows.h"

namespace tessera::infer {

struct SpanAnswer {
  bool found = false;         // there is one
  size_t begin = 0, end = 0;  // bytes of the context
  double score = 0;           // of its first and last token together
  double none_score = 0;      // of there being none: the smallest of all windows
  double probability = 0;     // among the best spans of all windows, and none where that counts
};

/// Two logits of every token of a window, that of an answer's first and that of its last token.
struct SpanLogits {
  std::vector<double> begin, end;
};

/// The token of a window whose logits say that no answer is there: the first, in a decoder, which
/// reads it before all else, the last.
size_t none_token(const text::AnswerWindow& window, bool causal);

/// The best span of all windows of at most `max_answer` tokens; none where `allow_no_answer` is set
/// and its logits are higher.
SpanAnswer best_answer(std::span<const text::AnswerWindow> windows,
                       std::span<const SpanLogits> logits,
                       int64_t max_answer,
                       bool allow_no_answer,
                       bool causal);

}  // namespace tessera::infer
