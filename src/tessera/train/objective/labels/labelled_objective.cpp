#include "tessera/train/objective/labels/labelled_objective.h"

#include <algorithm>
#include <cmath>

#include "tessera/infer/encoders/answer.h"
#include "tessera/text/answer_scores.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/labels/answer_source.h"
#include "tessera/train/objective/labels/label_loss.h"
#include "tessera/train/objective/labels/label_objective.h"
#include "tessera/train/objective/metrics.h"
#include "tessera/train/objective/part_losses.h"

namespace tessera::train {
namespace {

constexpr const char* kLoss = "loss";

/// Column `i` of the labels of a batch.
std::vector<int64_t> whole_labels(const PackedBatch& packed, size_t i) {
  std::vector<int64_t> out;
  for (const std::vector<double>& label : packed.labels)
    out.push_back(static_cast<int64_t>(label.at(i)));
  return out;
}

Tensor matrix_of(const std::vector<std::vector<double>>& rows) {
  std::vector<double> all;
  for (const std::vector<double>& row : rows) all.insert(all.end(), row.begin(), row.end());
  const auto n = static_cast<int64_t>(rows.size());
  return at::tensor(all, at::kDouble).reshape({n, n == 0 ? 0 : -1});
}

std::vector<int64_t> best_classes(const Tensor& logits_NC) {
  const Tensor best = logits_NC.argmax(-1).contiguous();
  return {best.const_data_ptr<int64_t>(), best.const_data_ptr<int64_t>() + best.numel()};
}

/// Common base of all label losses.
class LabelledObjective : public Objective {
 public:
  LabelledObjective(const Recipe& recipe, std::unique_ptr<Dataset> source)
      : Objective(std::move(source)), name_(recipe.objective->type()), task_(label_task(recipe)) {}

  std::string_view name() const override { return name_; }
  std::string main_loss() const override { return kLoss; }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out;
    out.losses[kLoss] = asked(packed);
    out.tokens = static_cast<double>(packed.ids.size());
    return out;
  }

  LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const override {
    const auto& [packed, batch, given, whole, update, terms] = micro;
    PartLosses parts(whole);
    model::ForwardOptions forward = given;
    forward.add_loss = parts.sink();
    const Tensor logits = logits_of(model, packed, batch, forward);
    LossSums sums{{kLoss, 0.0}};
    Tensor total = parts.weighted();
    if (logits.size(0) > 0) {
      const Tensor loss = loss_of(logits, packed);
      sums[kLoss] = loss.item<double>();
      const Tensor share = loss / whole.divisor(kLoss);
      total = total.defined() ? total + share : share;
    }
    if (std::isfinite(sums[kLoss]) && total.defined()) total.backward();
    for (const auto& [name, sum] : parts.sums()) sums[name] = sum.item<double>();
    return sums;
  }

  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    const at::NoGradGuard no_gradients;
    Evaluation result;
    double loss = 0, denominator = 0;
    const auto answers = begin_answers();
    for (const std::vector<int64_t>& pass : passes_of(source().valid_samples(), options)) {
      if (options.cancel != nullptr) options.cancel->check("evaluate");
      const PackedBatch packed = source().valid(pass);
      const Tensor logits = logits_of(model, packed, batch_of(packed), {});
      denominator += asked(packed);
      if (logits.size(0) > 0) loss += loss_of(logits, packed).item<double>();
      answers->add(logits, packed, pass);
    }
    result.loss = loss / std::max(1.0, denominator);
    answers->end(result);
    return result;
  }

 protected:
  /// Predictions and metrics of an evaluation.
  class Answers {
   public:
    virtual ~Answers() = default;
    virtual void add(const Tensor& logits,
                     const PackedBatch& packed,
                     const std::vector<int64_t>& numbers) = 0;
    virtual void end(Evaluation& result) const = 0;
  };

  /// Denominator of the loss.
  virtual double asked(const PackedBatch& packed) const {
    return static_cast<double>(packed.labels.size());
  }
  /// The rows with targets.
  virtual Tensor logits_of(const model::Model& model,
                           const PackedBatch& packed,
                           const nn::Batch& batch,
                           const model::ForwardOptions& forward) const {
    return model.logits(model.pooled(hidden_of(model, packed, batch, forward), batch));
  }
  /// The sum of losses over these rows.
  virtual Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const = 0;
  virtual std::unique_ptr<Answers> begin_answers() const = 0;

  const LabelTask& task() const { return task_; }

 private:
  std::string name_;
  LabelTask task_;
};

/// Class weights; only their ratios matter, and the smallest above 0 is 1, so that a mean has a
/// denominator of at least 1.
class ClassWeights {
 public:
  explicit ClassWeights(std::vector<double> weights) : weights_(std::move(weights)) {
    double smallest = 0;
    for (const double weight : weights_)
      if (weight > 0 && (smallest == 0 || weight < smallest)) smallest = weight;
    for (double& weight : weights_) weight /= smallest;
  }
  /// Sum over classes.
  double of(const std::vector<int64_t>& classes) const {
    if (weights_.empty()) return static_cast<double>(classes.size());
    double sum = 0;
    for (const int64_t one : classes) sum += weights_.at(static_cast<size_t>(one));
    return sum;
  }
  Tensor tensor() const { return weights_.empty() ? Tensor() : at::tensor(weights_, at::kDouble); }

 private:
  std::vector<double> weights_;
};

/// Accuracy and metrics for unbalanced classes.
void add_class_scores(const std::vector<int64_t>& truth,
                      const std::vector<int64_t>& said,
                      int64_t classes,
                      Evaluation& result) {
  result.tokens = std::ssize(truth);
  result.accuracy = result.scores["accuracy"] = accuracy(truth, said);
  if (classes == 2)
    result.scores["f1"] = f1_of_class(truth, said, 1);
  else
    result.scores["macro_f1"] = macro_f1(truth, said);
  result.scores["matthews"] = matthews(truth, said);
}

class OneClass final : public LabelledObjective {
 public:
  OneClass(const Recipe& recipe, std::unique_ptr<Dataset> source)
      : LabelledObjective(recipe, std::move(source)), weights_(task().class_weights) {}

 private:
  class Said final : public Answers {
   public:
    explicit Said(int64_t classes) : classes_(classes) {}
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      for (const int64_t one : best_classes(logits)) said_.push_back(one);
      for (const int64_t one : whole_labels(packed, 0)) truth_.push_back(one);
    }
    void end(Evaluation& result) const override {
      add_class_scores(truth_, said_, classes_, result);
    }

   private:
    int64_t classes_;
    std::vector<int64_t> truth_, said_;
  };

  double asked(const PackedBatch& packed) const override {
    return weights_.of(whole_labels(packed, 0));
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return class_loss(logits, at::tensor(whole_labels(packed, 0), at::kLong), weights_.tensor());
  }
  std::unique_ptr<Answers> begin_answers() const override {
    return std::make_unique<Said>(task().classes.size());
  }

  ClassWeights weights_;
};

class SeveralClasses final : public LabelledObjective {
 public:
  using LabelledObjective::LabelledObjective;

 private:
  class Said final : public Answers {
   public:
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      const Tensor above = (logits > 0).to(at::kDouble);  // a probability above one half
      for (size_t row = 0; row < packed.labels.size(); ++row) {
        said_.push_back(chosen_of(doubles_of(above[static_cast<int64_t>(row)])));
        truth_.push_back(chosen_of(packed.labels[row]));
      }
    }
    void end(Evaluation& result) const override {
      result.tokens = std::ssize(truth_);
      int64_t right = 0;
      for (size_t i = 0; i < truth_.size(); ++i) right += truth_[i] == said_[i] ? 1 : 0;
      result.accuracy = result.scores["accuracy"] =
          static_cast<double>(right) / static_cast<double>(std::max<size_t>(1, truth_.size()));
      result.scores["micro_f1"] = micro_f1(truth_, said_);
    }

   private:
    static std::vector<int64_t> chosen_of(const std::vector<double>& classes) {
      std::vector<int64_t> out;
      for (size_t i = 0; i < classes.size(); ++i)
        if (classes[i] > 0) out.push_back(static_cast<int64_t>(i));
      return out;
    }
    std::vector<std::vector<int64_t>> truth_, said_;
  };

  double asked(const PackedBatch& packed) const override {
    return static_cast<double>(packed.labels.size() * task().classes.names().size());
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return classes_loss(logits, matrix_of(packed.labels));
  }
  std::unique_ptr<Answers> begin_answers() const override { return std::make_unique<Said>(); }
};

class Scores final : public LabelledObjective {
 public:
  using LabelledObjective::LabelledObjective;

 private:
  class Said final : public Answers {
   public:
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      for (const double one : doubles_of(logits)) said_.push_back(one);
      for (const std::vector<double>& label : packed.labels) truth_.push_back(label.at(0));
    }
    void end(Evaluation& result) const override {
      result.tokens = std::ssize(truth_);
      result.scores["pearson"] = pearson(truth_, said_);
      result.scores["spearman"] = spearman(truth_, said_);
    }

   private:
    std::vector<double> truth_, said_;
  };

  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return score_loss(logits.squeeze(-1), matrix_of(packed.labels).squeeze(-1));
  }
  std::unique_ptr<Answers> begin_answers() const override { return std::make_unique<Said>(); }
};

class Words final : public LabelledObjective {
 public:
  Words(const Recipe& recipe, std::unique_ptr<Dataset> source)
      : LabelledObjective(recipe, std::move(source)), weights_(task().class_weights) {}

 private:
  class Said final : public Answers {
   public:
    explicit Said(const ClassNames& classes) : classes_(classes) {}
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      const std::vector<int64_t> said = best_classes(logits);
      size_t next = 0;
      for (const PackedDocument& piece : packed.pieces) {
        std::vector<std::string> right, found;
        for (int64_t t = 0; t < piece.length; ++t) {
          const int64_t truth = packed.targets[static_cast<size_t>(piece.begin + t)];
          if (truth < 0) continue;
          truth_.push_back(truth);
          said_.push_back(said.at(next));
          right.push_back(classes_.names()[static_cast<size_t>(truth)]);
          found.push_back(classes_.names()[static_cast<size_t>(said[next++])]);
        }
        entities_ += entity_overlap(right, found);
      }
    }
    void end(Evaluation& result) const override {
      if (!is_iob2(classes_.names())) {
        add_class_scores(truth_, said_, classes_.size(), result);
        return;
      }
      result.tokens = std::ssize(truth_);
      result.accuracy = result.scores["accuracy"] = accuracy(truth_, said_);
      result.scores["entity_f1"] = entities_.f1();
      result.scores["entity_precision"] = entities_.precision();
      result.scores["entity_recall"] = entities_.recall();
    }

   private:
    const ClassNames& classes_;
    std::vector<int64_t> truth_, said_;
    Overlap entities_;
  };

  static std::vector<int64_t> classes_in(const PackedBatch& packed) {
    std::vector<int64_t> out;
    for (const int64_t target : packed.targets)
      if (target >= 0) out.push_back(target);
    return out;
  }
  double asked(const PackedBatch& packed) const override { return weights_.of(classes_in(packed)); }
  Tensor logits_of(const model::Model& model,
                   const PackedBatch& packed,
                   const nn::Batch& batch,
                   const model::ForwardOptions& forward) const override {
    const Tensor rows = (targets_of(packed) >= 0).nonzero().squeeze(1);
    return model.logits(hidden_of(model, packed, batch, forward).index_select(0, rows));
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return class_loss(logits, at::tensor(classes_in(packed), at::kLong), weights_.tensor());
  }
  std::unique_ptr<Answers> begin_answers() const override {
    return std::make_unique<Said>(task().classes);
  }

  ClassWeights weights_;
};

class AnswersInTexts final : public LabelledObjective {
 public:
  AnswersInTexts(const Recipe& recipe, std::unique_ptr<AnswerSource> source)
      : LabelledObjective(recipe, std::move(source)), causal_(recipe.spec.causal()) {}

 private:
  const AnswerSource& asks() const { return static_cast<const AnswerSource&>(source()); }

  class Said final : public Answers {
   public:
    explicit Said(const AnswersInTexts& objective) : objective_(objective) {}
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>& numbers) override {
      size_t piece = 0;
      for (const int64_t number : numbers) {
        const AskedQuestion& asked = objective_.asks().question(number);
        std::vector<infer::SpanLogits> of_windows;
        for (size_t w = 0; w < asked.windows.size(); ++w, ++piece) {
          const Tensor own =
              logits.narrow(0, packed.pieces[piece].begin, packed.pieces[piece].length);
          of_windows.push_back({doubles_of(own.select(1, 0)), doubles_of(own.select(1, 1))});
        }
        const infer::SpanAnswer answer =
            infer::best_answer(asked.windows, of_windows, objective_.task().max_answer,
                               objective_.asks().some_lack(), objective_.causal_);
        const std::string said =
            answer.found ? asked.question.context.substr(answer.begin, answer.end - answer.begin)
                         : std::string();
        std::vector<std::string> truths;
        for (const Answer& truth : asked.question.answers) truths.push_back(truth.text);
        ++questions_;
        exact_ += text::best_exact_match(truths, said);
        f1_ += text::best_answer_f1(truths, said);
      }
    }
    void end(Evaluation& result) const override {
      const auto n = static_cast<double>(std::max<int64_t>(1, questions_));
      result.tokens = questions_;
      result.scores["exact_match"] = exact_ / n;
      result.scores["f1"] = f1_ / n;
    }

   private:
    const AnswersInTexts& objective_;
    int64_t questions_ = 0;
    double exact_ = 0, f1_ = 0;
  };

  Tensor logits_of(const model::Model& model,
                   const PackedBatch& packed,
                   const nn::Batch& batch,
                   const model::ForwardOptions& forward) const override {
    return model.logits(hidden_of(model, packed, batch, forward));
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    Tensor sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < packed.pieces.size(); ++i) {
      const PackedDocument& piece = packed.pieces[i];
      sum = sum + answer_loss(logits.narrow(0, piece.begin, piece.length),
                              static_cast<int64_t>(packed.labels[i].at(0)),
                              static_cast<int64_t>(packed.labels[i].at(1)));
    }
    return sum;
  }
  std::unique_ptr<Answers> begin_answers() const override { return std::make_unique<Said>(*this); }

  bool causal_;
};

}  // namespace

std::unique_ptr<Objective> labelled_objective(const Recipe& recipe,
                                              std::unique_ptr<Dataset> source,
                                              const ObjectiveOptions&) {
  switch (label_task(recipe).kind) {
    case LabelTask::Kind::one_class:
      return std::make_unique<OneClass>(recipe, std::move(source));
    case LabelTask::Kind::multi_label:
      return std::make_unique<SeveralClasses>(recipe, std::move(source));
    case LabelTask::Kind::score:
      return std::make_unique<Scores>(recipe, std::move(source));
    case LabelTask::Kind::words:
      return std::make_unique<Words>(recipe, std::move(source));
    case LabelTask::Kind::answers: {
      auto* asks = dynamic_cast<AnswerSource*>(source.get());
      require(asks != nullptr, "objective", "a source without questions");
      source.release();
      return std::make_unique<AnswersInTexts>(recipe, std::unique_ptr<AnswerSource>(asks));
    }
  }
  fail(ErrorKind::internal, "objective", "an unknown kind of label");
}

}  // namespace tessera::train
