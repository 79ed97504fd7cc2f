#include "tessera/train/objective/labels/label_objective.h"

#include "tessera/nn/embed/feature_embed.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/objective/labels/answer_source.h"
#include "tessera/train/objective/labels/label_source.h"

namespace tessera::train {
namespace {

const nn::ClassifierConfig* classifier_of(const model::ModelSpec& spec) {
  return dynamic_cast<const nn::ClassifierConfig*>(spec.head.config.get());
}

/// Checks the rest of a recipe, for all supervised objectives. `reads_features`: images and sounds
/// may take the place of texts.
void check_labelled(const DataPlan& plan, std::string_view type, bool reads_features = false) {
  require(plan.data.labels() != nullptr, "recipe", "objective \"{}\" without labelled data", type);
  if (plan.spec.encoder)
    fail(ErrorKind::spec, "spec.arch",
         "\"{}\" with objective \"{}\"; expected \"encoder\" or \"decoder\"",
         name_of(plan.spec.arch), type);
  if (!reads_features &&
      dynamic_cast<const nn::FeatureEmbedConfig*>(plan.spec.embed.config.get()) != nullptr)
    fail(ErrorKind::spec, "spec.embed",
         "\"{}\" reads no tokens, and objective \"{}\" has texts; expected \"token\"",
         plan.spec.embed.type(), type);
  if (const auto* head = classifier_of(plan.spec);
      head != nullptr && head->two_towers() && plan.data.labels()->has_features)
    fail(ErrorKind::spec, "spec.head.documents", "2 with images or sounds; expected 1");
  const TrainRecipe& train = plan.train;
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

/// The classifier head of an objective;
void check_classifier(const model::ModelSpec& spec,
                      std::string_view type,
                      nn::ClassifierOf of,
                      const std::vector<std::string>& labels) {
  const nn::ClassifierConfig* head = classifier_of(spec);
  const char* expected = of == nn::ClassifierOf::pooled ? "\"classifier\" and a \"pooler\""
                                                        : "\"classifier\" of \"tokens\"";
  if (head == nullptr || head->of != of)
    fail(ErrorKind::spec, "spec.head",
         "found {}; objective \"{}\" needs {} (a recipe without "
         "\"spec\" gets them for its \"init\")",
         spec.head ? fmt::format("\"{}\"", spec.head.type()) : "none", type, expected);
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

/// Class names of a head, or class numbers.
ClassNames classes_of(const model::ModelSpec& spec) {
  const nn::ClassifierConfig& head = *classifier_of(spec);
  if (!head.labels.empty()) return ClassNames(head.labels);
  std::vector<std::string> numbers;
  for (int64_t i = 0; i < head.n_labels; ++i) numbers.push_back(std::to_string(i));
  return ClassNames(std::move(numbers));
}

/// Base of the supervised objectives.
class Labelled {
 public:
  virtual ~Labelled() = default;
  virtual LabelTask task(const model::ModelSpec& spec) const = 0;
};

template <class C>
class LabelObjective : public ObjectiveOf<C>, public Labelled {
 public:
  using ObjectiveOf<C>::ObjectiveOf;
  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    return open_labels(plan, task(plan.spec), open_tokenizer(plan.data), cancel);
  }
  void write_settings(const ModelPlan& plan, const std::filesystem::path& folder) const override {
    if (const auto* embed =
            dynamic_cast<const nn::FeatureEmbedConfig*>(plan.spec.embed.config.get()))
      infer::write_feature_settings(folder, feature_settings(*plan.data.labels(), *embed));
  }
};

class Classification final : public LabelObjective<ClassificationKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const ModelPlan& plan) const override {
    check_labelled(plan, type(), /*reads_features=*/true);
    check_classifier(plan.spec, type(), nn::ClassifierOf::pooled, keys_.labels);
    check_weights(keys_.class_weights, classifier_of(plan.spec)->n_labels);
    if (keys_.multi_label && !keys_.class_weights.empty())
      fail(ErrorKind::spec, "objective.class_weights",
           "has no effect with multi_label; leave it out");
    if (!keys_.multi_label && classifier_of(plan.spec)->n_labels < 2)
      fail(ErrorKind::spec, "objective.labels", "only one class; expected at least 2");
  }
  LabelTask task(const model::ModelSpec& spec) const override {
    return {.kind = keys_.multi_label ? LabelTask::Kind::multi_label : LabelTask::Kind::one_class,
            .classes = classes_of(spec),
            .class_weights = keys_.class_weights,
            .two_towers = classifier_of(spec)->two_towers()};
  }
};

class Regression final : public LabelObjective<RegressionKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const ModelPlan& plan) const override {
    check_labelled(plan, type(), /*reads_features=*/true);
    check_classifier(plan.spec, type(), nn::ClassifierOf::pooled, {});
    if (const int64_t n = classifier_of(plan.spec)->n_labels; n != 1)
      fail(ErrorKind::spec, "spec.head.n_labels", "found {}; objective \"regression\" needs 1", n);
  }
  LabelTask task(const model::ModelSpec& spec) const override {
    return {.kind = LabelTask::Kind::score, .two_towers = classifier_of(spec)->two_towers()};
  }
};

class TokenClassification final : public LabelObjective<TokenClassificationKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const ModelPlan& plan) const override {
    check_labelled(plan, type());
    check_classifier(plan.spec, type(), nn::ClassifierOf::tokens, keys_.labels);
    check_weights(keys_.class_weights, classifier_of(plan.spec)->n_labels);
  }
  LabelTask task(const model::ModelSpec& spec) const override {
    return {LabelTask::Kind::words, classes_of(spec), keys_.class_weights};
  }
};

class QuestionAnswering final : public LabelObjective<QuestionAnsweringKeys> {
 public:
  using LabelObjective::LabelObjective;
  void check(const ModelPlan& plan) const override {
    check_labelled(plan, type());
    if (!plan.spec.head || plan.spec.head.type() != "span")
      fail(ErrorKind::spec, "spec.head",
           "found {}; objective \"question_answering\" needs \"span\" (a recipe without \"spec\" "
           "gets it for its \"init\")",
           plan.spec.head ? fmt::format("\"{}\"", plan.spec.head.type()) : "none");
    if (keys_.stride >= plan.train.length)
      fail(ErrorKind::spec, "objective.stride", "found {}; expected less than train.length = {}",
           keys_.stride, plan.train.length);
  }
  LabelTask task(const model::ModelSpec&) const override {
    return {
        .kind = LabelTask::Kind::answers, .stride = keys_.stride, .max_answer = keys_.max_answer};
  }
  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    return open_answers(plan, task(plan.spec), open_tokenizer(plan.data), cancel);
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

LabelTask label_task(const ObjectiveConfig& objective, const model::ModelSpec& spec) {
  const auto* labelled = dynamic_cast<const Labelled*>(&objective);
  require(labelled != nullptr, "objective", "\"{}\" has no labels", objective.type());
  return labelled->task(spec);
}

}  // namespace tessera::train
