#include "tessera/train/trainer.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <numeric>

#include "tessera/base/threads.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/ops/block_cache.h"
#include "tessera/train/checkpoint.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/loss.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/source.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

AdamW make_optimizer(const model::Model& model, const OptimizerRecipe& recipe) {
  std::vector<AdamW::Slot> slots;
  for (const auto& [decl, weight] : model.weights().all())
    slots.push_back({decl.name, decl.elements(), decl.decays()});
  return AdamW(std::move(slots),
               {recipe.betas[0], recipe.betas[1], recipe.eps, recipe.weight_decay});
}

/// The attention mixers of a stack, each of which must be able to take a part of a sequence.
int64_t count_split(const model::ModelSpec& spec, int64_t longest) {
  int64_t count = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i)
    for (const model::GroupSpec& group : spec.layers[i].groups)
      for (const model::BranchSpec& branch : group.branches) {
        const auto* attention = dynamic_cast<const nn::AttentionConfig*>(branch.part.config.get());
        if (attention == nullptr) continue;
        ++count;
        if (const std::string reason = attention->no_split_reason(longest); !reason.empty())
          fail(ErrorKind::spec, spec.under(fmt::format("layers.{}.{}", i, branch.name)), "{}",
               reason);
      }
  return count;
}

class Trainer {
 public:
  Trainer(const Recipe& recipe, const fs::path& folder, const TrainOptions& options)
      : recipe_(recipe),
        folder_(folder),
        options_(options),
        source_(open_source(recipe, folder / "cache", options.cancel)),
        model_(recipe.spec,
               model::Weights::initial(recipe.spec, static_cast<uint64_t>(recipe.train.seed))),
        optimizer_(make_optimizer(model_, recipe.optimizer)) {
    progress_.carried = fresh_rows(recipe, model_);
  }

  TrainResult run() {
    restore();
    write_file_atomically(folder_ / "recipe.json", resolve(recipe_).dump(2) + "\n");
    RunLog log(folder_, progress_.step);
    log_ = &log;
    std::optional<LogLine> last;
    try {
      while (progress_.step < recipe_.train.steps || progress_.unreported) {
        check_cancel();
        last = one_step();
      }
    } catch (const Error& error) {
      // whatever step was under way is forgotten, the completed ones are not
      if (error.kind() == ErrorKind::cancelled) save();
      throw;
    }
    save();
    return {progress_.step, progress_.seconds, last, checkpoint_folder(folder_, progress_.step)};
  }

 private:
  void restore() {
    const auto steps = checkpoint_steps(folder_);
    if (steps.empty()) return;
    progress_ = load_checkpoint(checkpoint_folder(folder_, steps.back()), recipe_, source_->key(),
                                model_, optimizer_);
    saved_ = progress_.step;
    logged_tokens_ = progress_.tokens;
  }

  void check_cancel() const {
    if (options_.cancel != nullptr) options_.cancel->check("train");
  }

  /// One update, and what is due after it.
  LogLine one_step() {
    if (!progress_.unreported) {
      const double begin = now();
      progress_.unreported = update();
      step_seconds_ += now() - begin;
      progress_.seconds += now() - begin;
    }
    // evaluation may be stopped; the line then waits in the checkpoint
    LogLine line = *progress_.unreported;
    report(line);
    progress_.unreported.reset();
    if (progress_.step < recipe_.train.steps && is_due(recipe_.checkpoint.every)) save();
    return line;
  }

  void report(LogLine& line) {
    const bool last = progress_.step == recipe_.train.steps;
    const bool evaluates =
        source_->valid_samples() > 0 && (last || is_due(recipe_.train.eval_every));
    if (evaluates) validate(line, last);
    line.seconds = progress_.seconds;
    line.tokens_per_s = step_seconds_ > 0
                            ? static_cast<double>(progress_.tokens - logged_tokens_) / step_seconds_
                            : 0;
    if (progress_.step == 1 || last || evaluates || progress_.step % recipe_.train.log_every == 0) {
      log_->write(line);
      logged_tokens_ = progress_.tokens;
      step_seconds_ = 0;
    }
    if (options_.on_step) options_.on_step(line, recipe_.train.steps);
  }

  bool is_due(int64_t every) const { return every > 0 && progress_.step % every == 0; }

  /// Forward, backward and update over `accumulate` batches.
  LogLine update() {
    const TrainRecipe& how = recipe_.train;
    // a step that does not complete leaves the rows as they were
    std::optional<CarriedRows> carried = progress_.carried;
    std::vector<PackedBatch> packed;
    int64_t targets = 0;
    for (int64_t micro = 0; micro < how.accumulate; ++micro) {
      std::vector<int64_t> begun;
      packed.push_back(source_->train(progress_.sample + micro * how.batch, how.batch, begun));
      for (const int64_t stream : begun) carried->forget(stream);
      targets += packed.back().n_targets;
    }
    // gradients of the mean over all tokens of the update
    const LossOptions loss_options{.scale = 1 / static_cast<double>(std::max<int64_t>(1, targets)),
                                   .z_loss = how.z_loss,
                                   .l2_wrap = how.l2_wrap};
    for (const auto& [decl, weight] : model_.weights().all())
      Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
    double nats = 0;
    for (int64_t micro = 0; micro < how.accumulate; ++micro) {
      nats += pass(micro, packed[static_cast<size_t>(micro)], loss_options, carried);
    }
    const std::vector<Parameter> parameters = parameter_memory();
    const double norm = optimizer_.gradient_norm(parameters);
    if (!std::isfinite(norm)) stop_at_gradient(parameters);

    const double lr = recipe_.optimizer.lr * recipe_.schedule.factor(progress_.step, how.steps);
    const double scale = how.clip_norm > 0 ? std::min(1.0, how.clip_norm / (norm + 1e-6)) : 1;
    optimizer_.update(parameters, progress_.step + 1, lr, scale);
    progress_.carried = std::move(carried);
    progress_.step += 1;
    progress_.sample += how.accumulate * how.batch;
    progress_.tokens += targets;
    return {.step = progress_.step,
            .loss = nats * loss_options.scale,
            .lr = lr,
            .grad_norm = norm,
            .tokens = progress_.tokens};
  }

  /// Forward and backward over one batch; returns its sum of losses.
  double pass(int64_t micro,
              const PackedBatch& packed,
              const LossOptions& loss,
              std::optional<CarriedRows>& carried) {
    auto [batch, wanted] = to_tensors(packed);
    model::ForwardOptions forward = forward_options();
    Tensor added;
    forward.add_loss = [&added](const std::string&, const Tensor& more) {
      added = added.defined() ? added + more : more;
    };
    std::vector<int64_t> streams(static_cast<size_t>(recipe_.train.batch));
    std::iota(streams.begin(), streams.end(), micro * recipe_.train.batch);
    std::optional<model::State> state;
    if (carried) forward.state = &state.emplace(carried->enter(batch, packed, streams));
    const Tensor hidden = hidden_of(model_, packed, batch, forward);
    const double nats = loss_and_backward(model_, hidden, wanted, loss, added);
    if (!std::isfinite(nats)) {
      if (carried) *state = carried->enter(batch, packed, streams);
      stop_at_loss(nats, packed, batch, forward);
    }
    if (carried) carried->leave(*state, batch, packed, streams);
    return nats;
  }

  model::ForwardOptions forward_options() const {
    model::ForwardOptions options;
    options.training = true;
    // samples fold in their numbers
    options.key = RandomKey(static_cast<uint64_t>(recipe_.train.seed))
                      .fold("dropout")
                      .fold(static_cast<uint64_t>(progress_.step));
    options.step = progress_.step;
    options.cancel = options_.cancel;
    options.sequence = options_.sequence;
    return options;
  }

  std::vector<Parameter> parameter_memory() const {
    std::vector<Parameter> parameters;
    for (const auto& [decl, weight] : model_.weights().all()) {
      const Tensor& tensor = weight->dense_tensor();
      const Tensor& gradient = tensor.grad();
      require(!gradient.defined() || gradient.is_contiguous(), "train",
              "the gradient of {} is not contiguous", decl.name);
      parameters.push_back({static_cast<float*>(tensor.mutable_data_ptr()),
                            gradient.defined() ? gradient.const_data_ptr<float>() : nullptr});
    }
    return parameters;
  }

  std::string safe_place() const {
    return saved_ > 0 ? fmt::format("checkpoint step-{} is kept", saved_)
                      : std::string("there is no checkpoint yet");
  }

  [[noreturn]] void stop_at_loss(double nats,
                                 const PackedBatch& packed,
                                 const nn::Batch& batch,
                                 model::ForwardOptions forward) const {
    // once more, watching every layer's output
    const at::AutoGradMode as_before(true);
    std::string place;
    forward.add_loss = nullptr;
    forward.probe = [&](const std::string& name, const Tensor& value) {
      if (place.empty() && !at::isfinite(value).all().item<bool>()) place = name;
    };
    hidden_of(model_, packed, batch, forward);
    fail(ErrorKind::input, "train",
         "step {}: the loss is {}; the first output that is not finite is \"{}\": lower "
         "optimizer.lr or train.clip_norm; {}",
         progress_.step + 1, nats, place.empty() ? "logits" : place, safe_place());
  }

  [[noreturn]] void stop_at_gradient(const std::vector<Parameter>& parameters) const {
    const int64_t slot = last_nonfinite(parameters, optimizer_.slots());
    fail(ErrorKind::input, "train",
         "step {}: the gradient of \"{}\" is not finite: lower optimizer.lr; {}",
         progress_.step + 1, slot >= 0 ? optimizer_.slots()[static_cast<size_t>(slot)].name : "?",
         safe_place());
  }

  void validate(LogLine& line, bool last) {
    const double begin = now();
    const Evaluation result = evaluate(model_, *source_,
                                       {.length = recipe_.train.length,
                                        .batch = recipe_.train.batch,
                                        .batches = last ? 0 : recipe_.train.eval_batches,
                                        .carried = progress_.carried.has_value(),
                                        .carry_limit = recipe_.train.carry_limit,
                                        .cancel = options_.cancel});
    line.valid_loss = result.loss;
    line.accuracy = result.accuracy;
    if (!recipe_.task) line.valid_bits_per_byte = result.bits_per_byte;
    progress_.seconds += now() - begin;
  }

  void save() {
    if (saved_ == progress_.step) return;
    log_->flush();
    save_checkpoint(folder_, recipe_, source_->key(), model_, optimizer_, progress_);
    saved_ = progress_.step;
  }

  const Recipe& recipe_;
  fs::path folder_;
  const TrainOptions& options_;
  std::unique_ptr<Source> source_;
  model::Model model_;
  AdamW optimizer_;
  Progress progress_;
  RunLog* log_ = nullptr;
  int64_t saved_ = 0;  // step of the newest checkpoint
  int64_t logged_tokens_ = 0;
  double step_seconds_ = 0;  // of steps since the last line
};

}  // namespace

void check_split(const Recipe& recipe, const nn::SequenceSplit& split) {
  if (split.ranks <= 1) return;
  if (recipe.train.windows == WindowOrder::carried)
    fail(ErrorKind::usage, "train",
         "the sequence is to be split over {} ranks, but train.windows \"carried\" goes on from a "
         "state; expected \"isolated\", or leave --sequence-parallel out",
         split.ranks);
  int64_t found = count_split(recipe.spec, recipe.train.length);
  if (recipe.spec.encoder) found += count_split(*recipe.spec.encoder, recipe.train.length);
  if (found == 0)
    fail(ErrorKind::usage, "train",
         "the sequence is to be split over {} ranks, but no mixer is \"attention\"; leave "
         "--sequence-parallel out",
         split.ranks);
}

TrainResult train(const Recipe& recipe, const fs::path& folder, const TrainOptions& options) {
  check_split(recipe, options.sequence);
  const RunLock lock(folder);
  remove_partial_checkpoints(folder);
  if (const auto steps = checkpoint_steps(folder); !steps.empty() && !options.resume)
    fail(ErrorKind::usage, "train",
         "{} holds checkpoints up to step {}; resume that run, or choose another folder",
         folder.string(), steps.back());
  if (recipe.train.threads > 0)
    set_thread_count(static_cast<int>(std::min<int64_t>(recipe.train.threads, 4096)));
  at::set_num_threads(thread_count());
  ops::use_block_cache();
  return Trainer(recipe, folder, options).run();
}

}  // namespace tessera::train
