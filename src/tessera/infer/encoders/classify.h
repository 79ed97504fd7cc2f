// What a model with a classifier or a span head says of texts: classes or numbers of whole texts,
// classes of words, answers to questions.
// Devlin et al. 2018, arXiv:1810.04805, sec. 4.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/infer/encoders/answer.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/text/tokenizer/text_pair.h"

namespace tessera::infer {

/// What the heads of a model answer.
enum class ClassificationTask {
  texts,    // a class or a number of a text, or of a pair
  words,    // a class of every word
  answers,  // where an answer stands in a text
};

/// Throws Error(usage) for a model without such a head, and one without a tokenizer.
ClassificationTask classification_task_of(const LoadedModel& loaded);

/// Names of the classes, else their numbers.
std::vector<std::string> class_names(const model::ModelSpec& spec);

/// Logits [texts, classes] in double of texts, and pairs of them, that are tokens already. Throws
/// Error(input) for tokens beside the vocabulary.
Tensor classifier_logits(const LoadedModel& loaded,
                         const std::vector<text::ClassifierInput>& texts,
                         const CancelToken* cancel = nullptr);

struct ClassifyOptions {
  int64_t max_tokens = 0;        // longer texts are cut; 0 = as many as the model takes
  bool multi_label = false;      // classes do not exclude one another
  int64_t stride = 128;          // of answers: tokens that two windows share
  int64_t max_answer = 30;       // tokens
  bool allow_no_answer = false;  // a text may hold no answer
  const CancelToken* cancel = nullptr;
};

struct ClassifierPair {
  std::string text;
  std::optional<std::string> second = {};
};

/// Of one text: a logit and a probability for every class; of a model with one number the number
/// alone.
struct ClassPrediction {
  std::vector<double> logits = {}, probabilities = {};
  size_t best = 0;
  bool cut = false;
};
std::vector<ClassPrediction> classify_texts(const LoadedModel& loaded,
                                            const std::vector<ClassifierPair>& texts,
                                            const ClassifyOptions& options);

/// Of one word; what is behind the last word of a text that is too long has no class.
struct WordPrediction {
  std::string word = {};
  size_t best = 0;
  double probability = 0;
  bool cut = false;
};
/// The words of a text, which spaces part.
std::vector<WordPrediction> classify_words(const LoadedModel& loaded,
                                           const std::vector<std::string>& words,
                                           const ClassifyOptions& options);

SpanAnswer find_answer(const LoadedModel& loaded,
                       const std::string& question,
                       const std::string& context,
                       const ClassifyOptions& options);

}  // namespace tessera::infer
