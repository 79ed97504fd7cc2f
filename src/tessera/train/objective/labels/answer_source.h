// Samples of extractive question answering. A training sample is one window of a context;
// validation is by question, with all its windows. Torch-free.
#pragma once

#include "tessera/text/tokenizer/answer_windows.h"
#include "tessera/train/objective/labels/label_source.h"

namespace tessera::train {

/// A question with the windows of its context.
struct AskedQuestion {
  Question question;
  std::vector<text::AnswerWindow> windows = {};
};

class AnswerSource : public Dataset {
 public:
  /// A validation question; valid() has the windows of each in order.
  virtual const AskedQuestion& question(int64_t number) const = 0;
  /// True if a question has no answer.
  virtual bool some_lack() const = 0;
};

std::unique_ptr<AnswerSource> open_answers(const DataPlan& plan,
                                           const LabelTask& task,
                                           const text::Tokenizer& tokenizer,
                                           const CancelToken* cancel);

}  // namespace tessera::train
