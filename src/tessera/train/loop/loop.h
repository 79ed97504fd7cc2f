// The steps of a run: micro-batches, clipping, schedule, log, evaluation, checkpoints, resume. What
// is learned, by which parameters and by which rule stands in its parts.
#pragma once

#include <functional>
#include <optional>

#include "tessera/base/cancel.h"
#include "tessera/infer/evaluation/expert_use.h"
#include "tessera/nn/sequence_split.h"
#include "tessera/train/loop/checkpoint.h"
#include "tessera/train/loop/first_updates.h"
#include "tessera/train/loop/train_state.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/optimizer/loss_scaler.h"
#include "tessera/train/optimizer/noise_scale.h"
#include "tessera/train/runs/run_watch.h"

namespace tessera::train {

struct TrainOptions {
  bool resume = false;  // from the newest checkpoint; from the start when there is none
  const CancelToken* cancel = nullptr;
  /// Attention by the ranks of a ring (ops/attention/ring_attention.h), simulated in this process;
  /// check_split() before there is a folder.
  nn::SequenceSplit sequence = {};
  /// After every step; losses of validation stand in it when evaluated.
  std::function<void(const LogLine& line, int64_t steps)> on_step = {};
  /// A line of what the run began with, where that was a model.
  std::function<void(const std::string&)> on_start = {};
  /// Once data and model have been found good, and the recipe is that of the newest checkpoint: the
  /// run's folder is there to stay, and may be written to.
  std::function<void()> on_begin = {};
};

struct TrainResult {
  int64_t step = 0;
  double seconds = 0;                // of training, over all resumes
  std::optional<LogLine> last = {};  // nothing when the run was complete already
  std::string stopped = {};          // why it ended before its last step
  std::filesystem::path checkpoint = {};
};

class Loop {
 public:
  /// Recipe, objective and options must outlive the loop. `folder` is that of the run, which this
  /// process holds.
  Loop(const Recipe& recipe,
       std::filesystem::path folder,
       const Objective& objective,
       std::unique_ptr<TrainState> learner,
       const TrainOptions& options);

  /// From the newest checkpoint, where there is one, to the end.
  TrainResult run();
  /// One update from where the run stands, without log, evaluation and checkpoint; returns how many
  /// tokens it read.
  int64_t try_update();

 private:
  /// What parts count over the micro-batches of an update.
  struct Counts {
    std::map<std::string, Tensor> ruled;  // for parameters that follow them
    nn::UpdateCounts update;
    infer::ExpertUse experts;
  };
  /// What its batches share.
  struct OfUpdate {
    const Denominators& whole;
    const UpdateView* view;
  };
  void restore();
  void check_cancel() const;
  LogLine one_step();
  void report(LogLine& line);
  bool is_due(int64_t every) const { return every > 0 && progress_.step % every == 0; }
  LogLine update();
  /// Whether the update that is being made is one of every so many.
  bool measures(int64_t every) const { return every > 0 && (progress_.step + 1) % every == 0; }
  void watch(const Counts& counts, const std::vector<Gradient>& gradients, LogLine& line);
  void change_experts(const Counts& counts, LogLine& line);
  LossSums pass(int64_t micro,
                const PackedBatch& packed,
                const OfUpdate& update,
                std::optional<RecurrentStates>& carried,
                Counts& counts);
  model::ForwardOptions forward_options() const;
  std::string safe_place() const;
  [[noreturn]] void stop_at_loss(double nats,
                                 const PackedBatch& packed,
                                 const nn::Batch& batch,
                                 model::ForwardOptions forward) const;
  [[noreturn]] void stop_at_gradient(const std::vector<Gradient>& gradients) const;
  [[noreturn]] void stop_at_divergence(const RunWatch::Divergence& found,
                                       const std::vector<Gradient>& gradients) const;
  /// Throws where a trained parameter is not finite, naming it.
  void check_weights() const;
  void evaluate_and_judge(LogLine& line);
  void validate(LogLine& line, bool all);
  void save();
  RunState state() {
    return {recipe_,
            objective_.source().key(),
            learner_->model,
            learner_->parameters,
            *learner_->optimizer,
            learner_->adapters,
            learner_->beside,
            learner_->origin};
  }

  const Recipe& recipe_;
  std::filesystem::path folder_;
  const Objective& objective_;
  std::unique_ptr<TrainState> learner_;
  const TrainOptions& options_;
  Progress progress_;
  RunWatch watch_;
  FirstUpdates first_;
  NoiseScale noise_scale_;
  std::optional<LossScaler> scaler_;  // in fp16
  RunLog* log_ = nullptr;
  int64_t saved_ = 0;  // step of the newest checkpoint
  int64_t logged_tokens_ = 0;
  bool routes_ = false;      // whether experts are chosen
  double step_seconds_ = 0;  // of steps since the last line
};

}  // namespace tessera::train
