#include "tessera/train/objective/labels/label_objective.h"

#include "tessera/nn/embed/feature_embed.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/objective/labels/answer_source.h"
#include "tessera/train/objective/labels/label_source.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {
namespace {

/// What all of them need of the rest of a recipe.
void check_labelled(const Recipe& recipe, std::string_view type) {
  require(recipe.labels.has_value(), "recipe", "objective \"{}\" without labelled data", type);
  if (recipe.spec.encoder)
    fail(ErrorKind::spec, "spec.arch",
         "\"{}\" with objective \"{}\"; expected \"encoder\" or \"decoder\"",
         name_of(recipe.spec.arch), type);
  if (dynamic_cast<const nn::FeatureEmbedConfig*>(recipe.spec.embed.config.get()) != nullptr)
    fail(ErrorKind::spec, "spec.embed",
         "\"{}\" reads no tokens, and objective \"{}\" has texts; expected \"token\"",
         recipe.spec.embed.type(), type);
  const TrainRecipe& train = recipe.train;
  const auto refuse = [&](bool given, const char* key, const char* expected) {
    if (given)
      fail(ErrorKind::spec, key, "has no meaning for objective \"{}\"; expected {}", type,
           expected);
  };
  refuse(train.windows == WindowOrder::carried, "train.windows", "\"isolated\"");
  refuse(train.curriculum.steps > 0, "train.curriculum", "steps 0");
  refuse(train.z_loss > 0, "train.z_loss", "0");
  refuse(train.l2_wrap > 0, "train.l2_wrap", "0");
  refuse(train.label_smoothing.share > 0, "train.label_smoothing", "share 0");
  refuse(train.early_exit.scale > 0, "train.early_exit", "scale 0");
}

const nn::ClassifierConfig* classifier_of(const Recipe& recipe) {
  return dynamic_cast<const nn::ClassifierConfig*>(recipe.spec.head.config.get());
}

/// The classifier that an objective reads; `labels` were given to it when the recipe was read.
void check_classifier(const Recipe& recipe,
                      std::string_view type,
                      nn::ClassifierOf of,
                      const std::vector<std::string>& labels) {
  const nn::ClassifierConfig* head = classifier_of(recipe);
  const char* expected = of == nn::ClassifierOf::pooled ? "\"classifier\" and a \"pooler\""
                                                        : "\"classifier\" of \"tokens\"";
  if (head == nullptr || head->of != of)
    fail(ErrorKind::spec, "spec.head",
         "found {}; objective \"{}\" needs {} (a recipe without "
         "\"spec\" gets them for its \"init\")",
         recipe.spec.head ? fmt::format("\"{}\"", recipe.spec.head.type()) : "none", type,
         expected);
  if (!labels.empty() && std::ssize(labels) != head->n_labels)
    fail(ErrorKind::spec, "objective.labels", "{} names; the head has {} classes", labels.size(),
         head->n_labels);
  if (!labels.empty() && labels != head->labels)
    fail(ErrorKind::spec, "objective.labels", "other names than those of the head: {}; expected {}",
         spec::Json(labels).dump(), spec::Json(head->labels).dump());
  if (!labels.empty()) ClassNames{labels};
}

void check_weights(const std::vector<double>& weights, int64_t n) {
  if (weights.empty()) return;
  if (std::ssize(weights) != n)
    fail(ErrorKind::spec, "objective.class_weights", "{} numbers; expected {}, one for each class",
         weights.size(), n);
  double sum = 0;
  for (const double weight : weights) {
    if (weight < 0)
      fail(ErrorKind::spec, "objective.class_weights", "found {}; expected numbers from 0", weight);
    sum += weight;
  }
  if (!(sum > 0))
    fail(ErrorKind::spec, "objective.class_weights", "all are 0; expected some above");
}

/// The names of a head's classes, else their numbers.
ClassNames classes_of(const Recipe& recipe) {
  const nn::ClassifierConfig& head = *classifier_of(recipe);
  if (!head.labels.empty()) return ClassNames(head.labels);
  std::vector<std::string> numbers;
  for (int64_t i = 0; i < head.n_labels; ++i) numbers.push_back(std::to_string(i));
  return ClassNames(std::move(numbers));
}

/// An objective that says what is learned of its examples.
class Labelled {
 public:
  virtual ~Labelled() = default;
  virtual LabelTask task(const Recipe& recipe) const = 0;
};

template <class C>
class LabelObjective : public ObjectiveOf<C>, public Labelled {
 public:
  using ObjectiveOf<C>::ObjectiveOf;
  std::unique_ptr<Dataset> open(const Recipe& recipe,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    return open_labels(recipe, task(recipe), open_tokenizer(recipe.data), cancel);
  }
};

class Classification final : public LabelObjective<ClassificationKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const Recipe& recipe) const override {
    check_labelled(recipe, type());
    check_classifier(recipe, type(), nn::ClassifierOf::pooled, keys_.labels);
    check_weights(keys_.class_weights, classifier_of(recipe)->n_labels);
    if (keys_.multi_label && !keys_.class_weights.empty())
      fail(ErrorKind::spec, "objective.class_weights",
           "has no effect with multi_label; leave it out");
    if (!keys_.multi_label && classifier_of(recipe)->n_labels < 2)
      fail(ErrorKind::spec, "objective.labels", "only one class; expected at least 2");
  }
  LabelTask task(const Recipe& recipe) const override {
    return {keys_.multi_label ? LabelTask::Kind::multi_label : LabelTask::Kind::one_class,
            classes_of(recipe), keys_.class_weights};
  }
};

class Regression final : public LabelObjective<RegressionKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const Recipe& recipe) const override {
    check_labelled(recipe, type());
    check_classifier(recipe, type(), nn::ClassifierOf::pooled, {});
    if (const int64_t n = classifier_of(recipe)->n_labels; n != 1)
      fail(ErrorKind::spec, "spec.head.n_labels", "found {}; objective \"regression\" needs 1", n);
  }
  LabelTask task(const Recipe&) const override { return {LabelTask::Kind::score}; }
};

class TokenClassification final : public LabelObjective<TokenClassificationKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const Recipe& recipe) const override {
    check_labelled(recipe, type());
    check_classifier(recipe, type(), nn::ClassifierOf::tokens, keys_.labels);
    check_weights(keys_.class_weights, classifier_of(recipe)->n_labels);
  }
  LabelTask task(const Recipe& recipe) const override {
    return {LabelTask::Kind::words, classes_of(recipe), keys_.class_weights};
  }
};

class QuestionAnswering final : public LabelObjective<QuestionAnsweringKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const Recipe& recipe) const override {
    check_labelled(recipe, type());
    if (!recipe.spec.head || recipe.spec.head.type() != "span")
      fail(ErrorKind::spec, "spec.head",
           "found {}; objective \"question_answering\" needs \"span\" (a recipe without \"spec\" "
           "gets it for its \"init\")",
           recipe.spec.head ? fmt::format("\"{}\"", recipe.spec.head.type()) : "none");
    if (keys_.stride >= recipe.train.length)
      fail(ErrorKind::spec, "objective.stride", "found {}; expected less than train.length = {}",
           keys_.stride, recipe.train.length);
  }
  LabelTask task(const Recipe&) const override {
    return {
        .kind = LabelTask::Kind::answers, .stride = keys_.stride, .max_answer = keys_.max_answer};
  }
  std::unique_ptr<Dataset> open(const Recipe& recipe,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    return open_answers(recipe, task(recipe), open_tokenizer(recipe.data), cancel);
  }
};

template <class Config, class C>
ObjectiveKind labelled_kind() {
  ObjectiveKind kind = objective_kind<Config, C>();
  kind.labelled = true;
  return kind;
}

}  // namespace

std::vector<ObjectiveKind> label_objective_kinds() {
  return {labelled_kind<Classification, ClassificationKeys>(),
          labelled_kind<Regression, RegressionKeys>(),
          labelled_kind<TokenClassification, TokenClassificationKeys>(),
          labelled_kind<QuestionAnswering, QuestionAnsweringKeys>()};
}

LabelTask label_task(const Recipe& recipe) {
  const auto* labelled = dynamic_cast<const Labelled*>(recipe.objective.get());
  require(labelled != nullptr, "objective", "\"{}\" has no labels", recipe.objective->type());
  return labelled->task(recipe);
}

}  // namespace tessera::train
