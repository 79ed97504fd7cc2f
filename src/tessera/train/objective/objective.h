// A training objective: makes inputs and targets from documents, computes named losses, each a mean
// over its own denominator, and evaluates.
//
// A loss is a sum of terms over a denominator that is counted from the targets before the first
// forward pass, over the whole update. So gradients are those of the sum over all micro-batches
// (and ranks) divided once. Parts may add losses of their own (nn::LossSink), sums over the tokens
// of a call: means over the tokens of their stack.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tessera/train/data/dataset.h"
#include "tessera/train/loop/deferred_number.h"
#include "tessera/train/loop/evaluate.h"
#include "tessera/train/loop/parameters.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/runs/run_log.h"

namespace tessera::train {

/// Denominators of losses, for one batch or several.
struct Denominators {
  std::map<std::string, double> losses;  // the objective's own, by name
  double tokens = 0;                     // tokens of the model, without sources
  double source_tokens = 0;              // tokens of its encoder
  double loss_scale = 1;                 // factor of all gradients (loss_scaler.h)
  Denominators& operator+=(const Denominators& other);
  /// The denominator of the objective's loss with that name, otherwise that of a part's loss: with
  /// prefix "encoder.", of a part of the encoder (model::ForwardOptions::add_loss).
  double of(const std::string& loss) const;
  /// The divisor of that loss's sum before the backward pass: of(), or 1 without targets.
  double divisor(const std::string& loss) const { return std::max(1.0, of(loss)) / loss_scale; }
};

/// Sums of losses over one or several batches, by name.
using LossSums = std::map<std::string, DeferredNumber>;

/// What an objective computes from all micro-batches of an update.
class UpdateView {
 public:
  virtual ~UpdateView() = default;
};

/// An update, for objectives whose losses are not sums over micro-batches.
struct Update {
  const std::vector<PackedBatch>& packed;            // its micro-batches
  std::unique_ptr<const UpdateView> view = nullptr;  // set by the objective with the first of them
};

/// Terms of another objective that one of target tokens adds to its own.
struct PassTerms {
  double own = 1;  // factor on its own terms
  /// Additional gradient of the head's logits, as in LossOptions; may be empty.
  std::function<Tensor(const Tensor& logits_NC, const Tensor& rows_N, const Tensor& targets_N)>
      of_logits = nullptr;
  /// Called after the forward pass: a scalar whose gradients are those of the terms; may be empty.
  std::function<Tensor()> after_forward = nullptr;
};

/// A micro-batch of an update; refers to its members during forward_backward().
struct MicroBatch {
  const PackedBatch& packed;
  const nn::Batch& batch;  // its inputs
  const model::ForwardOptions& forward;
  const Denominators& whole;         // of the update
  Update* update = nullptr;          // null = this micro-batch is the update
  const PassTerms* terms = nullptr;  // read by token_objective() alone
};

/// Defines samples, losses and metrics of a run; owns its dataset and auxiliary parameters, but not
/// the run's model. Used by the training thread. Gradients are added to the parameters, never set.
/// Losses depend on sample numbers and the seed, so training is reproducible. Throws
/// Error(cancelled) from evaluate(), and errors of the model.
class Objective {
 public:
  explicit Objective(std::unique_ptr<Dataset> source) : source_(std::move(source)) {}
  virtual ~Objective() = default;

  /// Its type, such as "causal_lm".
  virtual std::string_view name() const = 0;
  /// Training and validation samples.
  const Dataset& source() const { return *source_; }
  /// Name of the loss that is logged as the run's loss.
  virtual std::string main_loss() const = 0;

  /// Called before the first step with the run's model: creates auxiliary parameters that are
  /// trained with it and are not part of it.
  virtual AuxiliaryParameters join(const model::Model&) { return {}; }

  virtual Denominators denominators(const PackedBatch& packed) const = 0;
  /// Number of targets for the log.
  virtual double predicted(const Denominators& whole) const { return whole.of(main_loss()); }
  /// Forward and backward pass of a micro-batch: adds gradients of the sums, each over its
  /// denominator in `micro.whole`, to the parameters, and returns the sums of its own losses, those
  /// of parts included. If the main loss is not finite, no gradient passes the hidden states; on
  /// another device than the CPU, sums may be unread, and gradients pass in any case.
  virtual LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const = 0;
  /// Evaluates the validation samples. Throws Error(cancelled) between passes.
  virtual Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const = 0;

 private:
  std::unique_ptr<Dataset> source_;
};

/// Cross-entropy of the dataset's target tokens: the next tokens of a text, those of an answer,
/// masked tokens, answers of a task. A probe in MicroBatch::forward is called.
/// `objective`: its type and the names of its losses.
std::unique_ptr<Objective> token_objective(const DataPlan& plan,
                                           const ObjectiveConfig& objective,
                                           std::unique_ptr<Dataset> source);

/// Throws Error(spec) if the head has fewer outputs than the vocabulary. `type`: of the objective,
/// for messages.
void check_head_of_tokens(const model::ModelSpec& spec, std::string_view type);

/// Options of opening an objective.
struct ObjectiveOptions {
  std::filesystem::path cache;  // cache of tokenized files and model outputs
  const CancelToken* cancel = nullptr;
  bool goes_on = false;  // the run is resumed, possibly without its initial model
  std::function<void(const std::string&)> say = {};  // receives lines for the user
  at::Device device = at::kCPU;  // of the run's model, where a teacher or reference computes too
};

/// Creates the objective of a recipe. Throws the errors of open_source(), and Error(spec) if the
/// model's head does not fit.
std::unique_ptr<Objective> open_objective(const Recipe& recipe, const ObjectiveOptions& options);
std::unique_ptr<Objective> open_objective(const Recipe& recipe,
                                          const std::filesystem::path& cache,
                                          const CancelToken* cancel = nullptr,
                                          at::Device device = at::kCPU);

}  // namespace tessera::train
