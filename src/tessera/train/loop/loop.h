// The training loop: micro-batches, gradient clipping, schedule, log, evaluation, checkpoints,
// resume. Objective, parameters and optimizer are in its parts.
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
  bool resume = false;  // from the newest checkpoint; from the start if there is none
  const CancelToken* cancel = nullptr;
  /// Ring attention over simulated ranks in this process (ops/attention/ring_attention.h). Checked
  /// with check_split() before the folder is created.
  nn::SequenceSplit sequence = {};
  /// Where model, gradients and optimizer are. A run can be resumed on another device; only the CPU
  /// gives the same bits.
  at::Device device = at::kCPU;
  /// Folder of the token cache of the recipe's files; "" = in the run's folder.
  std::filesystem::path cache = {};
  /// Called after every step; `line` has validation losses if evaluated.
  std::function<void(const LogLine& line, int64_t steps)> on_step = {};
  /// Nats and targets of each pass of the last evaluation, which reads all validation data
  /// (EvaluateOptions::on_pass).
  std::function<void(double nats, int64_t targets)> on_block = {};
  /// Called with a line about the initial model, if there is one.
  std::function<void(const std::string&)> on_start = {};
  /// Called once data and model are valid and the recipe matches the newest checkpoint; then the
  /// run's folder exists and may be written to.
  std::function<void()> on_begin = {};
};

struct TrainResult {
  int64_t step = 0;
  double seconds = 0;                // training time over all resumes
  std::optional<LogLine> last = {};  // nullopt if the run was already complete
  std::string stopped = {};          // reason of an early end
  std::filesystem::path checkpoint = {};
};

/// One run of training. Owns the train state, the progress and the log of the run; recipe,
/// objective and options belong to the caller. Used by one thread; updates use the process's thread
/// count. Deterministic: on one machine and thread count, a resumed run equals an uninterrupted one
/// bit for bit. Throws Error(input) for losses or gradients that are not finite, Error(cancelled)
/// after saving.
class Loop {
 public:
  /// Recipe, objective and options must outlive the loop. `folder` is the run's, locked by this
  /// process.
  Loop(const Recipe& recipe,
       std::filesystem::path folder,
       const Objective& objective,
       std::unique_ptr<TrainState> learner,
       const TrainOptions& options);

  /// Trains from the newest checkpoint, if any, to the end.
  TrainResult run();
  /// One update without log, evaluation and checkpoint; returns its number of input tokens.
  int64_t try_update();
  /// Forward and backward pass of the first micro-batch alone: gradients are added, and nothing is
  /// read back from a device.
  void try_pass();

 private:
  /// Statistics over the micro-batches of an update.
  struct Counts {
    std::map<std::string, Tensor> ruled;  // for parameters with update rules
    nn::UpdateCounts update;
    infer::ExpertUse experts;
  };
  void restore();
  void check_cancel() const;
  LogLine one_step();
  void report(LogLine& line);
  bool is_due(int64_t every) const { return every > 0 && progress_.step % every == 0; }
  LogLine update();
  /// True if the current update is a multiple of `every`.
  bool measures(int64_t every) const { return every > 0 && (progress_.step + 1) % every == 0; }
  void watch(const Counts& counts, LogLine& line);
  void change_experts(const Counts& counts, LogLine& line);
  LossSums pass(int64_t micro,
                const PackedBatch& packed,
                const Denominators& whole,
                Update& update,
                std::optional<RecurrentStates>& carried,
                Counts& counts);
  LossSums read_sums(const std::vector<PackedBatch>& packed,
                     std::vector<LossSums>& passes,
                     DeferredNumber& norm) const;
  model::ForwardOptions forward_options() const;
  std::string safe_place() const;
  [[noreturn]] void stop_at_loss(double nats,
                                 const PackedBatch& packed,
                                 const nn::Batch& batch,
                                 model::ForwardOptions forward) const;
  [[noreturn]] void stop_at_gradient() const;
  [[noreturn]] void stop_at_divergence(const RunWatch::Divergence& found) const;
  /// Throws if a trained parameter is not finite, and names it.
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
            learner_->auxiliary,
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
  bool routes_ = false;      // the model has routers of experts
  double step_seconds_ = 0;  // of steps since the last log line
};

}  // namespace tessera::train
