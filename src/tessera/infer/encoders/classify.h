// Classification with an encoder's heads: text classification and regression, token classification
// (NER), question answering. Devlin et al. 2018, arXiv:1810.04805, sec. 4.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/infer/encoders/answer.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/text/tokenizer/text_pair.h"

namespace tessera::infer {

/// The task of a model, by its heads.
enum class ClassificationTask {
  texts,    // text classification or regression, also of pairs
  words,    // token classification: a class for every word
  answers,  // question answering: a span of a text
};

/// Throws Error(usage) for a model without such a head or without a tokenizer.
ClassificationTask classification_task_of(const LoadedModel& loaded);

/// Class names, or class numbers if the model has no names.
std::vector<std::string> class_names(const model::ModelSpec& spec);

/// Whether a classifier computes both texts of a pair alone, as documents of their own.
bool compares_documents(const model::ModelSpec& spec);
/// A text or pair as the model reads it, of at most `limit` tokens, 0 = no limit: one input, or
/// where it compares documents one for each. Throws Error(input) for a single text there, and as
/// text::classifier_input().
std::vector<text::ClassifierInput> classifier_inputs(const LoadedModel& loaded,
                                                     std::string_view first,
                                                     std::optional<std::string_view> second,
                                                     int64_t limit);

/// Logits [examples, classes] in double of the inputs of texts or pairs. Throws Error(input) for
/// ids outside the vocabulary.
Tensor classifier_logits(const LoadedModel& loaded,
                         const std::vector<text::ClassifierInput>& texts,
                         const CancelToken* cancel = nullptr);

struct ClassifyOptions {
  int64_t max_tokens = 0;        // longer texts are truncated; 0 = the model's maximum
  bool multi_label = false;      // classes are independent (sigmoid instead of softmax)
  int64_t stride = 128;          // question answering: overlap of windows, tokens
  int64_t max_answer = 30;       // question answering: max. length, tokens
  bool allow_no_answer = false;  // the text may have no answer
  const CancelToken* cancel = nullptr;
};

struct ClassifierPair {
  std::string text;
  std::optional<std::string> second = {};
};

/// Prediction for one text: logit and probability of every class; for regression the value only.
struct ClassPrediction {
  std::vector<double> logits = {}, probabilities = {};
  size_t best = 0;
  bool cut = false;  // truncated
};
std::vector<ClassPrediction> classify_texts(const LoadedModel& loaded,
                                            const std::vector<ClassifierPair>& texts,
                                            const ClassifyOptions& options);

/// Prediction for one word; words past the end of a truncated text have no class.
struct WordPrediction {
  std::string word = {};
  size_t best = 0;
  double probability = 0;
  bool cut = false;
};
/// A text as words, split at spaces.
std::vector<WordPrediction> classify_words(const LoadedModel& loaded,
                                           const std::vector<std::string>& words,
                                           const ClassifyOptions& options);

SpanAnswer find_answer(const LoadedModel& loaded,
                       const std::string& question,
                       const std::string& context,
                       const ClassifyOptions& options);

}  // namespace tessera::infer
