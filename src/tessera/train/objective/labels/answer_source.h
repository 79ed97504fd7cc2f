// Samples of questions about texts. To learn from, each window of a context is one; what is held
// out is asked question by question, all windows of one together. Torch-free.
#pragma once

#include "tessera/text/tokenizer/answer_windows.h"
#include "tessera/train/objective/labels/label_source.h"

namespace tessera::train {

/// A question in the windows that a model reads it in.
struct AskedQuestion {
  Question question;
  std::vector<text::AnswerWindow> windows = {};
};

class AnswerSource : public Dataset {
 public:
  /// One of those that are held out: valid() of some holds the windows of each in order.
  virtual const AskedQuestion& question(int64_t number) const = 0;
  /// Whether some question has no answer.
  virtual bool some_lack() const = 0;
};

std::unique_ptr<AnswerSource> open_answers(const Recipe& recipe,
                                           const LabelTask& task,
                                           const text::Tokenizer& tokenizer,
                                           const CancelToken* cancel);

}  // namespace tessera::train
