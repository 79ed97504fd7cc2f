// Extractive question answering: the best span over windows of a context, from logits of first and
// last tokens. Devlin et al. 2018, arXiv:1810.04805, sec. 4.2 and 4.3. Torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/text/tokenizer/answer_windows.h"

namespace tessera::infer {

struct SpanAnswer {
  bool found = false;         // false: no answer
  size_t begin = 0, end = 0;  // bytes in the context
  double score = 0;           // sum of the logits of its first and last token
  double none_score = 0;      // the same of "no answer": the minimum over windows
  double probability =
      0;  // softmax over the best spans of all windows, and over "no answer" if that is allowed
};

/// Two logits of every token of a window: to be the first and the last token of the answer.
struct SpanLogits {
  std::vector<double> begin, end;
};

/// The token of a window whose logits score "no answer": the first; in a decoder, where only the
/// last token sees all others, the last.
size_t none_token(const text::AnswerWindow& window, bool causal);

/// The best span of at most `max_answer` tokens over all windows; none if `allow_no_answer` is set
/// and the logits of "no answer" are higher.
SpanAnswer best_answer(std::span<const text::AnswerWindow> windows,
                       std::span<const SpanLogits> logits,
                       int64_t max_answer,
                       bool allow_no_answer,
                       bool causal);

}  // namespace tessera::infer
