#include "tessera/train/objective/labels/labelled_objective.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "tessera/infer/encoders/answer.h"
#include "tessera/infer/evaluation/estimate.h"
#include "tessera/infer/evaluation/result_lines.h"
#include "tessera/text/answer_scores.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/labels/answer_source.h"
#include "tessera/train/objective/labels/label_loss.h"
#include "tessera/train/objective/labels/label_objective.h"
#include "tessera/train/objective/labels/label_source.h"
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

/// Logits as lists, exactly.
std::vector<std::vector<double>> rows_of(const Tensor& logits) {
  std::vector<std::vector<double>> rows;
  for (int64_t row = 0; row < logits.size(0); ++row) rows.push_back(doubles_of(logits[row]));
  return rows;
}

/// The logits of a stored model call, in float32 as they were computed.
Tensor stored_logits(const spec::Json& line) {
  try {
    return matrix_of(line.at("logits").get<std::vector<std::vector<double>>>()).to(at::kFloat);
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::file, "eval",
         "stored results have other values than this evaluation; expected another --out");
  }
}

/// Adds scores of an evaluation, with their intervals if options ask for them.
class ScoreWriter {
 public:
  ScoreWriter(Evaluation& result, const std::optional<uint64_t>& seed)
      : result(result), seed_(seed) {}

  /// A share of `n` examples.
  void share(const std::string& name, int64_t hits, int64_t n) {
    result.scores[name] = static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(1, n));
    if (seed_ && n > 0) result.intervals[name] = infer::proportion(hits, n);
  }
  /// A mean over examples.
  void mean(const std::string& name, const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    result.scores[name] = sum / static_cast<double>(std::max<size_t>(1, values.size()));
    if (seed_ && !values.empty()) result.intervals[name] = infer::mean_of(values, *seed_);
  }
  /// A function of two values of each of `n` examples, which are resampled as whole parts:
  /// `parts[i]` has the examples of part i.
  template <class T>
  void of_pairs(const std::string& name,
                const std::vector<T>& truth,
                const std::vector<T>& predicted,
                const Groups& parts,
                double (*score)(std::span<const T>, std::span<const T>)) {
    result.scores[name] = score(truth, predicted);
    if (!seed_ || parts.empty()) return;
    std::vector<T> some_truth, some_predicted;
    result.intervals[name] =
        infer::bootstrap(std::ssize(parts), *seed_, [&](std::span<const int64_t> chosen) {
          some_truth.clear();
          some_predicted.clear();
          for (const int64_t part : chosen)
            for (const int64_t i : parts[static_cast<size_t>(part)]) {
              some_truth.push_back(truth[static_cast<size_t>(i)]);
              some_predicted.push_back(predicted[static_cast<size_t>(i)]);
            }
          return score(some_truth, some_predicted);
        });
  }

  Evaluation& result;

  const std::optional<uint64_t>& seed() const { return seed_; }

 private:
  std::optional<uint64_t> seed_;
};

/// Every example as a part of its own.
Groups single_parts(size_t n) {
  Groups parts;
  for (size_t i = 0; i < n; ++i) parts.push_back({static_cast<int64_t>(i)});
  return parts;
}

/// Common base of all label losses.
class LabelledObjective : public Objective {
 public:
  LabelledObjective(const ModelPlan& plan,
                    const ObjectiveConfig& objective,
                    std::unique_ptr<Dataset> source)
      : Objective(std::move(source)),
        name_(objective.type()),
        task_(label_task(objective, plan.spec)) {}

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
      sums[kLoss] = DeferredNumber(loss);
      const Tensor share = loss / whole.divisor(kLoss);
      total = total.defined() ? total + share : share;
    }
    const DeferredNumber& nats = sums[kLoss];
    if (total.defined() && (!nats.is_read() || std::isfinite(double{nats}))) total.backward();
    for (const auto& [name, sum] : parts.sums()) sums[name] = DeferredNumber(sum);
    return sums;
  }

  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    const at::NoGradGuard no_gradients;
    Evaluation result;
    double loss = 0, denominator = 0;
    const auto answers = begin_answers();
    size_t call = 0;
    for (const std::vector<int64_t>& pass : passes_of(source().valid_samples(), options)) {
      if (options.cancel != nullptr) options.cancel->check("evaluate");
      const PackedBatch packed = source().valid(pass);
      const bool stored = options.results != nullptr && call < options.results->done().size();
      const Tensor logits = stored ? stored_logits(options.results->done()[call])
                                   : logits_of(model, packed, batch_of(packed), {}).cpu();
      if (options.results != nullptr && !stored)
        options.results->add({{"index", call}, {"logits", rows_of(logits)}});
      ++call;
      denominator += asked(packed);
      if (logits.size(0) > 0) loss += loss_of(logits, packed).item<double>();
      answers->add(logits, packed, pass);
    }
    result.loss = loss / std::max(1.0, denominator);
    ScoreWriter scores(result, options.interval_seed);
    answers->end(scores);
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
    virtual void end(ScoreWriter& scores) const = 0;
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
    const ops::ProductSettings of_head{.type = forward.products};
    return model.logits(model.pooled(hidden_of(model, packed, batch, forward), batch, of_head),
                        of_head);
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

double f1_of_second(std::span<const int64_t> truth, std::span<const int64_t> predicted) {
  return f1_of_class(truth, predicted, 1);
}

/// Accuracy and metrics for unbalanced classes. `parts`: the examples that are resampled together.
void add_class_scores(const std::vector<int64_t>& truth,
                      const std::vector<int64_t>& predicted,
                      int64_t classes,
                      const Groups& parts,
                      ScoreWriter& scores) {
  scores.result.tokens = std::ssize(truth);
  int64_t hits = 0;
  for (size_t i = 0; i < truth.size(); ++i) hits += truth[i] == predicted[i] ? 1 : 0;
  if (parts.size() == truth.size())
    scores.share("accuracy", hits, std::ssize(truth));
  else
    scores.of_pairs("accuracy", truth, predicted, parts, accuracy);
  scores.result.accuracy = scores.result.scores["accuracy"];
  if (classes == 2)
    scores.of_pairs("f1", truth, predicted, parts, f1_of_second);
  else
    scores.of_pairs("macro_f1", truth, predicted, parts, macro_f1);
  scores.of_pairs("matthews", truth, predicted, parts, matthews);
}

class OneClass final : public LabelledObjective {
 public:
  OneClass(const ModelPlan& plan, const ObjectiveConfig& objective, std::unique_ptr<Dataset> source)
      : LabelledObjective(plan, objective, std::move(source)),
        weights_(task().class_weights),
        layout_(plan.data.labels()->layout) {}

 private:
  class Predictions final : public Answers {
   public:
    Predictions(int64_t classes, std::optional<RecordLayout> layout, const LabelDataset* samples)
        : classes_(classes), layout_(layout), samples_(samples) {}
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>& numbers) override {
      for (const int64_t one : best_classes(logits)) predicted_.push_back(one);
      for (const int64_t one : whole_labels(packed, 0)) truth_.push_back(one);
      if (!layout_ || classes_ != 2) return;
      const std::vector<double> margins = doubles_of(logits.select(1, 1) - logits.select(1, 0));
      margins_.insert(margins_.end(), margins.begin(), margins.end());
      for (const int64_t number : numbers) {
        const LabelSample& sample = samples_->valid_sample(number);
        groups_[sample.group].push_back(std::ssize(candidates_));
        candidates_.push_back(sample.candidate);
      }
    }
    void end(ScoreWriter& scores) const override {
      Groups parts;
      for (const auto& [name, members] : groups_) parts.push_back(members);
      const int64_t n = std::ssize(parts);
      if (layout_ == RecordLayout::copa)
        scores.share("choice_accuracy", right_choices(parts, truth_, margins_), n);
      if (layout_ == RecordLayout::multirc)
        scores.share("exact_match", right_groups(parts, truth_, predicted_), n);
      if (layout_ == RecordLayout::record) {
        const CandidateScores of = candidate_scores(parts, truth_, margins_, candidates_);
        scores.mean("exact_match", of.exact_match);
        scores.mean("answer_f1", of.f1);
      }
      if (parts.empty()) parts = single_parts(truth_.size());
      add_class_scores(truth_, predicted_, classes_, parts, scores);
    }

   private:
    int64_t classes_;
    std::optional<RecordLayout> layout_;
    const LabelDataset* samples_;
    std::vector<int64_t> truth_, predicted_;
    std::vector<double> margins_;  // logit of class 1 - logit of class 0
    std::vector<std::string> candidates_;
    std::map<std::string, std::vector<int64_t>> groups_;
  };

  double asked(const PackedBatch& packed) const override {
    return weights_.of(whole_labels(packed, 0));
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return class_loss(logits, at::tensor(whole_labels(packed, 0), at::kLong), weights_.tensor());
  }
  std::unique_ptr<Answers> begin_answers() const override {
    const auto* samples = dynamic_cast<const LabelDataset*>(&source());
    require(samples != nullptr, "objective", "a source without labelled texts");
    return std::make_unique<Predictions>(task().classes.size(), layout_, samples);
  }

  ClassWeights weights_;
  std::optional<RecordLayout> layout_;
};

class SeveralClasses final : public LabelledObjective {
 public:
  using LabelledObjective::LabelledObjective;

 private:
  class Predictions final : public Answers {
   public:
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      const Tensor above = (logits > 0).to(at::kDouble);  // a probability above one half
      for (size_t row = 0; row < packed.labels.size(); ++row) {
        predicted_.push_back(chosen_of(doubles_of(above[static_cast<int64_t>(row)])));
        truth_.push_back(chosen_of(packed.labels[row]));
      }
    }
    void end(ScoreWriter& scores) const override {
      scores.result.tokens = std::ssize(truth_);
      int64_t right = 0;
      for (size_t i = 0; i < truth_.size(); ++i) right += truth_[i] == predicted_[i] ? 1 : 0;
      scores.share("accuracy", right, std::ssize(truth_));
      scores.result.accuracy = scores.result.scores["accuracy"];
      scores.of_pairs("micro_f1", truth_, predicted_, single_parts(truth_.size()), micro_f1);
    }

   private:
    static std::vector<int64_t> chosen_of(const std::vector<double>& classes) {
      std::vector<int64_t> out;
      for (size_t i = 0; i < classes.size(); ++i)
        if (classes[i] > 0) out.push_back(static_cast<int64_t>(i));
      return out;
    }
    std::vector<std::vector<int64_t>> truth_, predicted_;
  };

  double asked(const PackedBatch& packed) const override {
    return static_cast<double>(packed.labels.size() * task().classes.names().size());
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return classes_loss(logits, matrix_of(packed.labels));
  }
  std::unique_ptr<Answers> begin_answers() const override {
    return std::make_unique<Predictions>();
  }
};

class Scores final : public LabelledObjective {
 public:
  using LabelledObjective::LabelledObjective;

 private:
  class Predictions final : public Answers {
   public:
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      for (const double one : doubles_of(logits)) predicted_.push_back(one);
      for (const std::vector<double>& label : packed.labels) truth_.push_back(label.at(0));
    }
    void end(ScoreWriter& scores) const override {
      scores.result.tokens = std::ssize(truth_);
      const Groups parts = single_parts(truth_.size());
      scores.of_pairs("pearson", truth_, predicted_, parts, pearson);
      scores.of_pairs("spearman", truth_, predicted_, parts, spearman);
    }

   private:
    std::vector<double> truth_, predicted_;
  };

  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return score_loss(logits.squeeze(-1), matrix_of(packed.labels).squeeze(-1));
  }
  std::unique_ptr<Answers> begin_answers() const override {
    return std::make_unique<Predictions>();
  }
};

class Words final : public LabelledObjective {
 public:
  Words(const ModelPlan& plan, const ObjectiveConfig& objective, std::unique_ptr<Dataset> source)
      : LabelledObjective(plan, objective, std::move(source)), weights_(task().class_weights) {}

 private:
  class Predictions final : public Answers {
   public:
    explicit Predictions(const ClassNames& classes) : classes_(classes) {}
    void add(const Tensor& logits,
             const PackedBatch& packed,
             const std::vector<int64_t>&) override {
      const std::vector<int64_t> predicted = best_classes(logits);
      size_t next = 0;
      for (const PackedDocument& piece : packed.pieces) {
        std::vector<std::string> right, found;
        parts_.emplace_back();
        for (int64_t t = 0; t < piece.length; ++t) {
          const int64_t truth = packed.targets[static_cast<size_t>(piece.begin + t)];
          if (truth < 0) continue;
          parts_.back().push_back(std::ssize(truth_));
          truth_.push_back(truth);
          predicted_.push_back(predicted.at(next));
          right.push_back(classes_.names()[static_cast<size_t>(truth)]);
          found.push_back(classes_.names()[static_cast<size_t>(predicted[next++])]);
        }
        entities_.push_back(entity_overlap(right, found));
      }
    }
    void end(ScoreWriter& scores) const override {
      if (!is_iob2(classes_.names())) {
        add_class_scores(truth_, predicted_, classes_.size(), parts_, scores);
        return;
      }
      scores.result.tokens = std::ssize(truth_);
      scores.of_pairs("accuracy", truth_, predicted_, parts_, accuracy);
      scores.result.accuracy = scores.result.scores["accuracy"];
      add_entity_score("entity_f1", &Overlap::f1, scores);
      add_entity_score("entity_precision", &Overlap::precision, scores);
      add_entity_score("entity_recall", &Overlap::recall, scores);
    }

   private:
    void add_entity_score(const char* name,
                          double (Overlap::*score)() const,
                          ScoreWriter& scores) const {
      Overlap sum;
      for (const Overlap& one : entities_) sum += one;
      scores.result.scores[name] = (sum.*score)();
      if (!scores.seed() || entities_.empty()) return;
      scores.result.intervals[name] = infer::bootstrap(
          std::ssize(entities_), *scores.seed(), [&](std::span<const int64_t> chosen) {
            Overlap some;
            for (const int64_t i : chosen) some += entities_[static_cast<size_t>(i)];
            return (some.*score)();
          });
    }

    const ClassNames& classes_;
    std::vector<int64_t> truth_, predicted_;
    Groups parts_;                   // words of each sentence
    std::vector<Overlap> entities_;  // of each sentence
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
    const Tensor rows = (targets_of(packed) >= 0).nonzero().squeeze(1),
                 hidden = hidden_of(model, packed, batch, forward);
    return model.logits(hidden.index_select(0, rows.to(hidden.device())),
                        {.type = forward.products});
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    return class_loss(logits, at::tensor(classes_in(packed), at::kLong), weights_.tensor());
  }
  std::unique_ptr<Answers> begin_answers() const override {
    return std::make_unique<Predictions>(task().classes);
  }

  ClassWeights weights_;
};

class AnswersInTexts final : public LabelledObjective {
 public:
  AnswersInTexts(const ModelPlan& plan,
                 const ObjectiveConfig& objective,
                 std::unique_ptr<AnswerSource> source)
      : LabelledObjective(plan, objective, std::move(source)), causal_(plan.spec.causal()) {}

 private:
  const AnswerSource& asks() const { return static_cast<const AnswerSource&>(source()); }

  class Predictions final : public Answers {
   public:
    explicit Predictions(const AnswersInTexts& objective) : objective_(objective) {}
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
        const std::string predicted =
            answer.found ? asked.question.context.substr(answer.begin, answer.end - answer.begin)
                         : std::string();
        std::vector<std::string> truths;
        for (const Answer& truth : asked.question.answers) truths.push_back(truth.text);
        exact_ += text::best_exact_match(truths, predicted) > 0 ? 1 : 0;
        f1_.push_back(text::best_answer_f1(truths, predicted));
      }
    }
    void end(ScoreWriter& scores) const override {
      scores.result.tokens = std::ssize(f1_);
      scores.share("exact_match", exact_, std::ssize(f1_));
      scores.mean("f1", f1_);
    }

   private:
    const AnswersInTexts& objective_;
    int64_t exact_ = 0;
    std::vector<double> f1_;
  };

  Tensor logits_of(const model::Model& model,
                   const PackedBatch& packed,
                   const nn::Batch& batch,
                   const model::ForwardOptions& forward) const override {
    return model.logits(hidden_of(model, packed, batch, forward), {.type = forward.products});
  }
  Tensor loss_of(const Tensor& logits, const PackedBatch& packed) const override {
    Tensor sum = at::zeros({}, at::TensorOptions(logits.device()).dtype(at::kDouble));
    for (size_t i = 0; i < packed.pieces.size(); ++i) {
      const PackedDocument& piece = packed.pieces[i];
      sum = sum + answer_loss(logits.narrow(0, piece.begin, piece.length),
                              static_cast<int64_t>(packed.labels[i].at(0)),
                              static_cast<int64_t>(packed.labels[i].at(1)));
    }
    return sum;
  }
  std::unique_ptr<Answers> begin_answers() const override {
    return std::make_unique<Predictions>(*this);
  }

  bool causal_;
};

}  // namespace

std::unique_ptr<Objective> labelled_objective(const ModelPlan& plan,
                                              const ObjectivePtr& objective,
                                              std::unique_ptr<Dataset> source,
                                              const ObjectiveOptions&) {
  switch (label_task(*objective, plan.spec).kind) {
    case LabelTask::Kind::one_class:
      return std::make_unique<OneClass>(plan, *objective, std::move(source));
    case LabelTask::Kind::multi_label:
      return std::make_unique<SeveralClasses>(plan, *objective, std::move(source));
    case LabelTask::Kind::score:
      return std::make_unique<Scores>(plan, *objective, std::move(source));
    case LabelTask::Kind::words:
      return std::make_unique<Words>(plan, *objective, std::move(source));
    case LabelTask::Kind::answers: {
      auto* asks = dynamic_cast<AnswerSource*>(source.get());
      require(asks != nullptr, "objective", "a source without questions");
      source.release();
      return std::make_unique<AnswersInTexts>(plan, *objective,
                                              std::unique_ptr<AnswerSource>(asks));
    }
  }
  fail(ErrorKind::internal, "objective", "an unknown kind of label");
}

}  // namespace tessera::train
