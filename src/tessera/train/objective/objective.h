// What a run learns: inputs and targets out of documents, losses by name, each a mean over
// something of its own, and scores.
//
// A loss is a sum of terms over a denominator that is counted from the targets before the first
// forward pass, over the whole update: gradients are those of the sum over all micro-batches (and,
// later, ranks) divided once. Parts may add losses of their own (nn::LossSink), sums over the
// tokens of a call: means over the tokens that their stack reads.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tessera/train/data/dataset.h"
#include "tessera/train/loop/evaluate.h"
#include "tessera/train/loop/parameters.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/runs/run_log.h"

namespace tessera::train {

/// What losses are means over, in one batch or in several together.
struct Denominators {
  std::map<std::string, double> losses;  // the objective's own, by name
  double tokens = 0;                     // that the model reads, those of sources left out
  double source_tokens = 0;              // that the encoder beside it reads
  double loss_scale = 1;                 // that all gradients are multiplied by (loss_scaler.h)
  Denominators& operator+=(const Denominators& other);
  /// Of the objective's loss of that name, else of a part's: where it begins with "encoder.", of a
  /// part of the encoder beside the model (model::ForwardOptions::add_loss).
  double of(const std::string& loss) const;
  /// What a sum of that loss is divided by before it goes back: that, or 1 where nothing is asked.
  double divisor(const std::string& loss) const { return std::max(1.0, of(loss)) / loss_scale; }
};

/// Sums of losses over one batch or several, by name.
using LossSums = std::map<std::string, double>;

/// What learn() of each batch of an update has to know of the others.
class UpdateView {
 public:
  virtual ~UpdateView() = default;
};

class Objective {
 public:
  explicit Objective(std::unique_ptr<Dataset> source) : source_(std::move(source)) {}
  virtual ~Objective() = default;

  /// What kind it is, such as "causal_lm".
  virtual std::string_view name() const = 0;
  /// Samples to learn from and to be asked.
  const Dataset& source() const { return *source_; }
  /// The loss that is logged as such, one of its own.
  virtual std::string main_loss() const = 0;

  /// Before the first step, of the model that a run trains: makes what is trained beside it and is
  /// no part of it.
  virtual AuxiliaryParameters join(const model::Model&) { return {}; }

  virtual Denominators denominators(const PackedBatch& packed) const = 0;
  /// Tokens that were predicted, of what the log counts.
  virtual double predicted(const Denominators& whole) const { return whole.of(main_loss()); }
  /// Forward over one batch, whose tensors are `batch`, and back: adds to the parameters the
  /// gradients of the sums, each over its denominator in `whole`, and returns the sums; those of
  /// parts among them. Where the main one is not finite no gradient passes the hidden states.
  virtual LossSums forward_backward(const model::Model& model,
                                    const PackedBatch& packed,
                                    const nn::Batch& batch,
                                    const model::ForwardOptions& forward,
                                    const Denominators& whole) const = 0;
  /// Where an update has several batches whose losses are not sums of their own: what
  /// forward_backward_part() of each has to know of all; null = nothing.
  virtual std::unique_ptr<const UpdateView> view(const model::Model&,
                                                 const std::vector<PackedBatch>&,
                                                 const model::ForwardOptions&) const {
    return nullptr;
  }
  /// learn() of one of them.
  virtual LossSums forward_backward_part(const model::Model& model,
                                         const PackedBatch& packed,
                                         const nn::Batch& batch,
                                         const model::ForwardOptions& forward,
                                         const Denominators& whole,
                                         const UpdateView* view) const {
    require(view == nullptr, "objective", "{} reads a view of an update and does not say how",
            name());
    return forward_backward(model, packed, batch, forward, whole);
  }
  /// What it holds out, answered. Throws Error(cancelled) between passes.
  virtual Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const = 0;

 private:
  std::unique_ptr<Dataset> source_;
};

/// What is learned from one pass beside an objective's own losses.
struct PassTerms {
  double own = 1;  // factor on those
  /// LossOptions::beside of the head's logits; may be empty.
  std::function<Tensor(const Tensor& logits_NC, const Tensor& rows_N, const Tensor& targets_N)>
      of_logits = nullptr;
  /// Called when the forward pass has been made: a number whose gradients are the terms'; may be
  /// empty.
  std::function<Tensor()> behind = nullptr;
};

class TokenObjective : public Objective {
 public:
  using Objective::Objective;
  LossSums forward_backward(const model::Model& model,
                            const PackedBatch& packed,
                            const nn::Batch& batch,
                            const model::ForwardOptions& forward,
                            const Denominators& whole) const override {
    return forward_backward_with(model, packed, batch, forward, whole, {});
  }
  /// learn() with more: the sums are its own alone. A probe in `forward` is served.
  virtual LossSums forward_backward_with(const model::Model& model,
                                         const PackedBatch& packed,
                                         const nn::Batch& batch,
                                         const model::ForwardOptions& forward,
                                         const Denominators& whole,
                                         const PassTerms& terms) const = 0;
};

/// Cross-entropy of the tokens that a source names as targets: the next ones of a text, those of an
/// answer, those hidden in a text, what a task asks.
std::unique_ptr<TokenObjective> token_objective(const Recipe& recipe,
                                                std::unique_ptr<Dataset> source);

/// Throws Error(spec) where the head has fewer numbers than the vocabulary tokens.
void check_head_of_tokens(const Recipe& recipe);

/// What an objective is opened with besides its recipe.
struct ObjectiveOptions {
  std::filesystem::path cache;  // where tokens of files, and what models say of them, are kept
  const CancelToken* cancel = nullptr;
  bool goes_on =
      false;  // a run from its checkpoint, which may have outlived the model it began from
  std::function<void(const std::string&)> say = {};  // takes lines for whoever trains
};

/// The objective of a recipe. Throws what open_source() does, and Error(spec) where the head cannot
/// answer it.
std::unique_ptr<Objective> open_objective(const Recipe& recipe, const ObjectiveOptions& options);
std::unique_ptr<Objective> open_objective(const Recipe& recipe,
                                          const std::filesystem::path& cache,
                                          const CancelToken* cancel = nullptr);

}  // namespace tessera::train
