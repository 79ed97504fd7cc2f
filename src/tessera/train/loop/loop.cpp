#include "tessera/train/loop/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "tessera/ops/weights/product.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/evaluate.h"
#include "tessera/train/loop/gradient_norms.h"
#include "tessera/train/loop/precision.h"
#include "tessera/train/runs/run_folder.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Router statistics: number of choices of each expert.
constexpr std::string_view kLoad = ".load";

}  // namespace

Loop::Loop(const Recipe& recipe,
           fs::path folder,
           const Objective& objective,
           std::unique_ptr<TrainState> learner,
           const TrainOptions& options)
    : recipe_(recipe),
      folder_(std::move(folder)),
      objective_(objective),
      learner_(std::move(learner)),
      options_(options),
      watch_(recipe.stop.value_or(StopRecipe()),
             recipe.watch.value_or(WatchRecipe()),
             recipe.checkpoint.best,
             recipe.checkpoint.metric),
      first_(recipe.schedule, recipe.optimizer.lr, recipe.train.steps) {
  if (recipe.train.precision == Precision::fp16) scaler_.emplace(recipe.train.loss_scale);
  progress_.carried = fresh_rows(recipe.spec, recipe.train, learner_->parameters.device());
  const auto look = [this](const model::ModelSpec& stack) {
    model::for_each_part(stack, [this](const spec::AnyPart& part) {
      routes_ = routes_ || part.mechanism->slot == spec::Slot::router;
    });
  };
  look(recipe.spec);
  if (recipe.spec.encoder) look(*recipe.spec.encoder);
  for (const model::PredictorSpec& predictor : recipe.spec.predictors) look(*predictor.stack);
}

TrainResult Loop::run() {
  restore();
  if (options_.on_begin) options_.on_begin();
  write_file_atomically(folder_ / "recipe.json", resolve(recipe_).dump(2) + "\n");
  write_file_atomically(folder_ / "written.json", recipe_.written.dump(2) + "\n");
  // an unreported step has no log line, unless the process was killed after writing it
  RunLog log(folder_, progress_.step - (progress_.unreported ? 1 : 0));
  log_ = &log;
  std::optional<LogLine> last;
  try {
    while ((progress_.step < recipe_.train.steps && watch_.stop_reason().empty()) ||
           progress_.unreported) {
      check_cancel();
      last = one_step();
    }
  } catch (const Error& error) {
    // the interrupted step is discarded, completed ones are saved
    if (error.kind() == ErrorKind::cancelled) save();
    throw;
  }
  save();
  return {progress_.step, progress_.seconds, last,
          progress_.step < recipe_.train.steps ? watch_.stop_reason() : std::string(),
          checkpoint_folder(folder_, progress_.step)};
}

int64_t Loop::try_update() {
  update();
  return recipe_.train.batch * recipe_.train.accumulate * recipe_.train.length;
}

void Loop::try_pass() {
  std::optional<RecurrentStates> carried = progress_.carried;
  std::vector<int64_t> begun;
  const std::vector<PackedBatch> packed{
      objective_.source().train(progress_.sample, recipe_.train.batch, begun)};
  for (const int64_t stream : begun)
    if (carried) carried->forget(stream);
  Denominators whole = objective_.denominators(packed.front());
  whole.loss_scale = scaler_ ? scaler_->scale() : 1;
  Counts counts;
  Update all{packed};
  pass(0, packed.front(), whole, all, carried, counts);
}

void Loop::restore() {
  const auto steps = checkpoint_steps(folder_);
  if (steps.empty()) return;
  progress_ = load_checkpoint(checkpoint_folder(folder_, steps.back()), state());
  saved_ = progress_.step;
  logged_tokens_ = progress_.tokens;
  const std::string where = checkpoint_folder(folder_, saved_).string();
  watch_.restore(progress_.watch, where);
  if (!progress_.watch.is_null())
    noise_scale_.restore(progress_.watch.value("noise_scale", Json()), where);
  if (scaler_) scaler_->restore(progress_.watch.value("loss_scale", Json()), where);
  tidy_checkpoints(folder_, recipe_.checkpoint.keep, watch_.best_steps());
}

void Loop::check_cancel() const {
  if (options_.cancel != nullptr) options_.cancel->check("train");
}

/// One update, then log, evaluation and checkpoint if due.
LogLine Loop::one_step() {
  if (!progress_.unreported) {
    const double begin = now();
    progress_.unreported = update();
    step_seconds_ += now() - begin;
    progress_.seconds += now() - begin;
  }
  // if evaluation is cancelled, the log line is stored in the checkpoint
  LogLine line = *progress_.unreported;
  report(line);
  progress_.unreported.reset();
  const std::vector<int64_t>& best = watch_.best_steps();
  if (progress_.step < recipe_.train.steps &&
      (is_due(recipe_.checkpoint.every) ||
       std::find(best.begin(), best.end(), progress_.step) != best.end()))
    save();
  return line;
}

void Loop::report(LogLine& line) {
  const bool last = progress_.step == recipe_.train.steps;
  const bool evaluates =
      objective_.source().valid_samples() > 0 && (last || is_due(recipe_.train.eval_every));
  if (evaluates) evaluate_and_judge(line);
  line.seconds = progress_.seconds;
  line.tokens_per_s = step_seconds_ > 0
                          ? static_cast<double>(progress_.tokens - logged_tokens_) / step_seconds_
                          : 0;
  if (progress_.step == 1 || last || evaluates || !line.expert_changes.empty() ||
      !line.warnings.empty() || !line.norms.empty() || line.noise_scale ||
      progress_.step % recipe_.train.log_every == 0) {
    log_->write(line);
    logged_tokens_ = progress_.tokens;
    step_seconds_ = 0;
  }
  if (options_.on_step) options_.on_step(line, recipe_.train.steps);
}

/// Forward and backward passes over `accumulate` micro-batches, then the update.
LogLine Loop::update() {
  const TrainRecipe& how = recipe_.train;
  // an incomplete step leaves the rows unchanged
  std::optional<RecurrentStates> carried = progress_.carried;
  std::vector<PackedBatch> packed;
  Denominators whole;
  for (int64_t micro = 0; micro < how.accumulate; ++micro) {
    std::vector<int64_t> begun;
    packed.push_back(
        objective_.source().train(progress_.sample + micro * how.batch, how.batch, begun));
    for (const int64_t stream : begun) carried->forget(stream);
    whole += objective_.denominators(packed.back());
  }
  const WatchRecipe measured = recipe_.watch.value_or(WatchRecipe());
  const double asked = whole.of(objective_.main_loss());
  learner_->parameters.clear_gradients();
  std::vector<LossSums> passes;
  Counts counts;
  std::vector<NoiseScale::Small> small;
  std::vector<std::vector<float>> before;  // the gradient of the micro-batches so far
  const double loss_scale = scaler_ ? scaler_->scale() : 1;
  whole.loss_scale = loss_scale;
  Update all{packed};
  for (int64_t micro = 0; micro < how.accumulate; ++micro) {
    const PackedBatch& batch = packed[static_cast<size_t>(micro)];
    passes.push_back(pass(micro, batch, whole, all, carried, counts));
    if (!measures(measured.noise_scale)) continue;
    // their part of the total loss, rescaled to a mean of their own
    const double tokens = objective_.denominators(batch).of(objective_.main_loss()),
                 share = norm_of_change(learner_->parameters.host_gradients(), before),
                 own = tokens > 0 ? share / loss_scale * asked / tokens : 0;
    small.push_back({own * own, tokens});
  }
  before.clear();
  if (scaler_) learner_->parameters.divide_gradients(loss_scale);
  DeferredNumber norm_of_all = learner_->parameters.gradient_norm();
  const LossSums sums = read_sums(packed, passes, norm_of_all);
  const double norm = norm_of_all;
  if (!scaler_ && !std::isfinite(norm)) stop_at_gradient();
  const bool made = !scaler_ || scaler_->update(std::isfinite(norm));

  const double factor = rate_factor(recipe_.schedule, progress_.step, how.steps);
  const double lr = recipe_.optimizer.lr * factor;
  const double scale = how.clip_norm > 0 ? std::min(1.0, how.clip_norm / (norm + 1e-6)) : 1;
  // without targets nothing is updated, not even by weight decay
  std::optional<GradientNorms> norms;
  if (measures(measured.norms)) norms.emplace(learner_->parameters);
  std::vector<std::string> first;
  const auto add_first = [&](std::vector<std::string> lines) {
    first.insert(first.end(), lines.begin(), lines.end());
  };
  if (asked > 0 && made) {
    const double main = sums.at(objective_.main_loss()) / std::max(1.0, asked);
    add_first(first_.before(progress_.step, learner_->parameters, norm, main,
                            recipe_.data.labels() ? 0 : recipe_.spec.vocab));
    learner_->optimizer->update(factor, scale);
    add_first(first_.after(progress_.step, learner_->parameters));
    const int64_t balance = recipe_.experts ? recipe_.experts->balance_steps : 0;
    std::map<std::string, Tensor> ruled = counts.ruled;
    if (balance > 0 && progress_.step >= balance)
      std::erase_if(ruled, [](const auto& count) { return count.first.ends_with(kLoad); });
    learner_->parameters.follow_rules(ruled);
  }
  progress_.carried = std::move(carried);
  progress_.step += 1;
  progress_.sample += how.accumulate * how.batch;
  progress_.tokens += static_cast<int64_t>(objective_.predicted(whole));
  LogLine line{
      .step = progress_.step, .lr = lr, .grad_norm = made ? norm : 0, .tokens = progress_.tokens};
  if (norms) line.norms = norms->after();
  line.warnings = std::move(first);
  if (scaler_) line.loss_scale = loss_scale;
  if (!made)
    line.warnings.push_back(
        fmt::format("gradients in fp16 were not finite: no update is made, and the loss is "
                    "multiplied by {} from here on",
                    scaler_->scale()));
  if (!small.empty() && asked > 0 && made) {
    noise_scale_.add(small, norm * norm, asked);
    line.noise_scale = noise_scale_.value();
  }
  for (const auto& [name, sum] : sums) {
    const double mean = sum / std::max(1.0, whole.of(name));
    (name == objective_.main_loss() ? line.loss : line.losses[name]) = mean;
  }
  if (!counts.experts.empty()) {
    line.experts = counts.experts.to_json();
    for (const infer::ExpertUse::Collapse& collapse : counts.experts.collapsed())
      line.alarms.push_back(collapse.text());
  }
  if (asked > 0 && made) watch(counts, line);
  if (recipe_.experts && recipe_.experts->changes()) change_experts(counts, line);
  return line;
}

/// Watches an update, and stops a run that diverges.
void Loop::watch(const Counts& counts, LogLine& line) {
  if (const auto spike = watch_.spike(line.loss)) {
    const auto [layer, norm] = largest_gradient(learner_->parameters);
    line.warnings.push_back(
        fmt::format("the loss {:.4f} is {:.1f} deviations above its mean {:.4f}; the gradient's "
                    "norm is {:.3g}, largest in \"{}\" ({:.3g})",
                    spike->loss, spike->deviations, spike->mean, line.grad_norm, layer, norm));
  }
  for (const auto& [name, value] : counts.ruled) {
    if (!name.ends_with(kLoad)) continue;
    const std::string text =
        watch_.expert_loads(name.substr(0, name.size() - kLoad.size()), doubles_of(value));
    if (!text.empty()) line.warnings.push_back(text);
  }
  if (const auto found = watch_.divergence(progress_.step)) stop_at_divergence(*found);
}

/// Adds or removes experts by the recipe, after an update with router statistics `counts`.
void Loop::change_experts(const Counts& counts, LogLine& line) {
  ExpertCounts& known = progress_.expert_counts;
  ++known.updates;
  for (const auto& [name, value] : counts.ruled) {
    if (!name.ends_with(kLoad)) continue;
    const std::vector<double> load = doubles_of(value);
    std::vector<double>& sums = known.by_router[name.substr(0, name.size() - kLoad.size())];
    sums.resize(load.size(), 0.0);
    for (size_t e = 0; e < sums.size(); ++e) sums[e] += load[e];
  }
  const auto change = due_change(*recipe_.experts, learner_->model.spec(), progress_.step,
                                 static_cast<uint64_t>(recipe_.train.seed), known);
  if (!change) return;
  line.expert_changes = describe(*change, learner_->model.spec());
  learner_ = with_experts(*learner_, recipe_.optimizer, *change);
  watch_.forget_experts();
}

/// Forward and backward pass of one micro-batch; returns its sums of losses.
LossSums Loop::pass(int64_t micro,
                    const PackedBatch& packed,
                    const Denominators& whole,
                    Update& update,
                    std::optional<RecurrentStates>& carried,
                    Counts& counts) {
  nn::Batch batch = batch_of(packed);
  model::ForwardOptions forward = forward_options();
  std::vector<int64_t> streams(static_cast<size_t>(recipe_.train.batch));
  std::iota(streams.begin(), streams.end(), micro * recipe_.train.batch);
  std::optional<model::State> state;
  if (carried) forward.state = &state.emplace(carried->enter(batch, packed, streams));
  forward.update = &counts.update;
  if (routes_ || !learner_->parameters.ruled().empty())
    forward.add_statistic = [&counts](const std::string& name, const Tensor& value) {
      const auto [known, added] = counts.ruled.emplace(name, value);
      if (!added) known->second = known->second + value;
      counts.experts.add(name, value);
    };
  LossSums sums =
      objective_.forward_backward(learner_->model, {packed, batch, forward, whole, &update});
  const DeferredNumber& nats = sums.at(objective_.main_loss());
  if (nats.is_read() && !std::isfinite(double{nats})) {
    if (carried) *state = carried->enter(batch, packed, streams);
    stop_at_loss(nats, packed, batch, forward);
  }
  if (carried) carried->leave(*state, batch, packed, streams);
  return sums;
}

/// Sums over the passes. What is unread is read here, with the norm: a step on a device waits for
/// it once.
LossSums Loop::read_sums(const std::vector<PackedBatch>& packed,
                         std::vector<LossSums>& passes,
                         DeferredNumber& norm) const {
  std::vector<DeferredNumber*> numbers{&norm};
  for (LossSums& pass : passes)
    for (auto& [name, sum] : pass) numbers.push_back(&sum);
  DeferredNumber::read(numbers);
  LossSums sums;
  for (size_t micro = 0; micro < passes.size(); ++micro) {
    const double nats = passes[micro].at(objective_.main_loss());
    if (!std::isfinite(nats))
      stop_at_loss(nats, packed[micro], batch_of(packed[micro]), forward_options());
    for (const auto& [name, sum] : passes[micro]) sums[name] += sum;
  }
  return sums;
}

model::ForwardOptions Loop::forward_options() const {
  model::ForwardOptions options;
  options.training = true;
  // random keys include sample numbers
  options.key = RandomKey(static_cast<uint64_t>(recipe_.train.seed))
                    .fold("dropout")
                    .fold(static_cast<uint64_t>(progress_.step));
  options.step = progress_.step;
  options.cancel = options_.cancel;
  options.sequence = options_.sequence;
  options.products = product_type(recipe_.train.precision);
  options.recompute = recipe_.train.recompute;
  return options;
}

std::string Loop::safe_place() const {
  return saved_ > 0 ? fmt::format("checkpoint step-{} is kept", saved_)
                    : std::string("there is no checkpoint yet");
}

void Loop::stop_at_loss(double nats,
                        const PackedBatch& packed,
                        const nn::Batch& batch,
                        model::ForwardOptions forward) const {
  check_weights();
  // repeats the forward pass and checks every layer's output
  const at::AutoGradMode as_before(true);
  std::string place;
  forward.add_loss = nullptr;
  forward.add_statistic = nullptr;
  forward.probe = [&](const std::string& name, const Tensor& value) {
    if (place.empty() && !at::isfinite(value).all().item<bool>()) place = name;
  };
  hidden_of(learner_->model, packed, batch, forward);
  fail(ErrorKind::input, "train",
       "step {}: the loss is {}; the first output that is not finite is \"{}\": lower "
       "optimizer.lr or train.clip_norm; {}",
       progress_.step + 1, number_text(nats), place.empty() ? "logits" : place, safe_place());
}

void Loop::stop_at_gradient() const {
  const int64_t bad = last_nonfinite(learner_->parameters.host_gradients());
  fail(ErrorKind::input, "train",
       "step {}: the gradient of \"{}\" is not finite: lower optimizer.lr; {}", progress_.step + 1,
       bad >= 0 ? learner_->parameters.trained()[static_cast<size_t>(bad)].decl.name : "?",
       safe_place());
}

void Loop::stop_at_divergence(const RunWatch::Divergence& found) const {
  const auto [layer, norm] = largest_gradient(learner_->parameters);
  fail(ErrorKind::input, "train",
       "step {}: the loss diverges: its running mean is {:.4f}, and was {:.4f} at step {}; the "
       "gradient is largest in \"{}\" (norm {:.3g}): lower optimizer.lr or train.clip_norm, or "
       "raise stop.diverged; {}",
       progress_.step, found.mean, found.least, found.least_step, layer, norm, safe_place());
}

void Loop::check_weights() const {
  const std::string name = first_nonfinite(learner_->parameters);
  if (!name.empty())
    fail(ErrorKind::input, "train",
         "step {}: \"{}\" is not finite after the update: lower optimizer.lr; {}", progress_.step,
         name, safe_place());
}

/// Evaluates, then decides about early stopping and the best checkpoints.
void Loop::evaluate_and_judge(LogLine& line) {
  const bool last = progress_.step == recipe_.train.steps, some = recipe_.train.eval_batches > 0,
             compares = recipe_.checkpoint.best > 0 || (recipe_.stop && recipe_.stop->by_metric());
  // compared metrics use the same samples each time
  validate(line, !some || (last && !compares));
  if (!compares) return;
  // a cancelled evaluation is discarded and repeated when the run resumes
  RunWatch judged = watch_;
  judged.evaluated(line);
  const std::string reason = judged.stop_reason();
  if (!last) line.stopped = reason;
  if (some && (last || !reason.empty())) validate(line, true);
  watch_ = std::move(judged);
}

void Loop::validate(LogLine& line, bool all) {
  const double begin = now();
  const ShownAverage average(*learner_->optimizer);
  const Evaluation result = objective_.evaluate(
      learner_->model,
      {.batch = recipe_.train.batch,
       .batches = all ? 0 : recipe_.train.eval_batches,
       .carried = progress_.carried.has_value(),
       .carry_limit = recipe_.train.carry_limit,
       .cancel = options_.cancel,
       .on_pass = progress_.step == recipe_.train.steps && all ? options_.on_block : nullptr});
  if (!std::isfinite(result.loss)) {
    check_weights();
    fail(ErrorKind::input, "train", "step {}: the validation loss is {}: lower optimizer.lr; {}",
         progress_.step, number_text(result.loss), safe_place());
  }
  line.valid_loss = result.loss;
  if (result.scores.empty() || result.scores.contains("accuracy")) line.accuracy = result.accuracy;
  line.scores = result.scores;
  for (const auto& [name, loss] : result.losses) line.losses["valid_" + name] = loss;
  if (result.bits_per_byte > 0) line.valid_bits_per_byte = result.bits_per_byte;
  progress_.seconds += now() - begin;
}

void Loop::save() {
  if (saved_ == progress_.step) return;
  check_weights();
  progress_.watch = watch_.to_json();
  progress_.watch["noise_scale"] = noise_scale_.to_json();
  if (scaler_) progress_.watch["loss_scale"] = scaler_->to_json();
  progress_.best = watch_.best_steps();
  log_->flush();
  save_checkpoint(folder_, state(), progress_);
  saved_ = progress_.step;
}

}  // namespace tessera::train
