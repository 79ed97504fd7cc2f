// Supervised objectives: text classification ("classification"), "regression",
// "token_classification", extractive "question_answering". Torch-free.
//
// Losses: cross-entropy, weighted mean over samples with class weights; for multi-label, binary
// cross-entropy, mean over texts and classes; squared error; cross-entropy at the first token of
// every word; mean of those of the first and the last token of an answer.
#pragma once

#include "tessera/nn/head/head_config.h"
#include "tessera/train/data/label_examples.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

struct ClassificationKeys {
  static constexpr const char* kType = "classification";
  std::vector<std::string> labels = {};
  bool multi_label = false;
  std::vector<double> class_weights = {};
  std::optional<nn::PoolOf> pool = {};

  static constexpr auto fields() {
    using C = ClassificationKeys;
    using spec::field;
    return std::tuple{
        field("labels", &C::labels,
              "names of the classes, in the order of their numbers; none = those of the head, or "
              "numbers"),
        field("multi_label", &C::multi_label,
              "multi-label classification: any number of classes per text"),
        field("class_weights", &C::class_weights, "loss weight of each class"),
        field(
            "pool", &C::pool,
            "pooling of a new head; null = the model's own pooler, else the first token through a "
            "dense layer, for decoders the last token")};
  }
};

struct RegressionKeys {
  static constexpr const char* kType = "regression";
  std::optional<nn::PoolOf> pool = {};

  static constexpr auto fields() {
    return std::tuple{spec::field("pool", &RegressionKeys::pool, "as in \"classification\"")};
  }
};

struct TokenClassificationKeys {
  static constexpr const char* kType = "token_classification";
  std::vector<std::string> labels = {};
  std::vector<double> class_weights = {};

  static constexpr auto fields() {
    using C = TokenClassificationKeys;
    using spec::field;
    return std::tuple{
        field("labels", &C::labels, "names of the classes of words, in the order of their numbers"),
        field("class_weights", &C::class_weights, "loss weight of each class")};
  }
};

struct QuestionAnsweringKeys {
  static constexpr const char* kType = "question_answering";
  int64_t stride = 128;
  int64_t max_answer = 30;

  static constexpr auto fields() {
    using C = QuestionAnsweringKeys;
    using spec::field;
    return std::tuple{
        field("stride", &C::stride,
              "tokens that two windows of a long context share, each of train.length tokens with "
              "the question",
              {.min = 0}),
        field("max_answer", &C::max_answer, "maximum length of an answer, tokens", {.min = 1})};
  }
};

std::vector<ObjectiveKind> label_objective_kinds();

/// What such an objective learns: its classes.
struct LabelTask {
  enum class Kind { one_class, multi_label, score, words, answers };
  Kind kind = Kind::one_class;
  ClassNames classes = {};  // empty for scores and answers
  std::vector<double> class_weights = {};
  int64_t stride = 0, max_answer = 0;
  bool two_towers = false;  // both texts of a pair are documents of their own
};
/// For a model with this spec.
LabelTask label_task(const ObjectiveConfig& objective, const model::ModelSpec& spec);

}  // namespace tessera::train
