#include "tessera/analysis/run_check.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::analysis {
namespace {

using train::LogLine;
using train::RunRecord;

// thresholds of the findings
constexpr double kDiverged = 1;    // nats above the least mean of the loss
constexpr double kRising = 0.01;   // share of the least validation loss, and nats
constexpr double kFalling = 0.01;  // share of the loss, over the last fifth of a run
constexpr double kSpike = 5;       // times the median gradient norm
constexpr double kClipped = 0.5;   // share of the logged updates
constexpr double kTokensPerParameter = 20;
constexpr double kEpochs = 4;
constexpr double kNoise = 4;       // times a batch
constexpr double kTargets = 0.5;   // share of a step's tokens
constexpr double kBusyExpert = 4;  // times an even share
constexpr size_t kFewLines = 10;   // too few to see a trend in

/// A value of the recipe by its path, such as "/optimizer/lr"; null without it.
Json value_at(const Json& recipe, const char* path) {
  const Json::json_pointer pointer(path);
  return recipe.is_object() && recipe.contains(pointer) ? recipe[pointer] : Json();
}

std::optional<double> number_at(const Json& recipe, const char* path) {
  const Json value = value_at(recipe, path);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Mean loss of the lines in [begin, end).
double mean_loss(const std::vector<LogLine>& lines, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += lines[i].loss;
  return sum / static_cast<double>(end - begin);
}

/// The lines with a validation loss.
std::vector<const LogLine*> evaluated(const RunRecord& run) {
  std::vector<const LogLine*> out;
  for (const LogLine& line : run.lines)
    if (line.valid_loss && std::isfinite(*line.valid_loss)) out.push_back(&line);
  return out;
}

using Found = std::optional<std::string>;

Found loss_diverges(const RunRecord& run) {
  if (run.lines.size() < kFewLines) return std::nullopt;
  const size_t n = run.lines.size(), window = std::max<size_t>(3, n / 20);
  double least = INFINITY;
  int64_t at = 0;
  for (size_t i = window; i <= n; ++i)
    if (const double mean = mean_loss(run.lines, i - window, i); mean < least)
      least = mean, at = run.lines[i - 1].step;
  const double last = mean_loss(run.lines, n - window, n);
  if (last < least + kDiverged) return std::nullopt;
  return fmt::format("mean loss {:.3f} at the end, {:.3f} at step {}", last, least, at);
}

Found valid_loss_rises(const RunRecord& run) {
  const auto lines = evaluated(run);
  if (lines.size() < 3) return std::nullopt;
  const LogLine& best = **std::min_element(
      lines.begin(), lines.end(),
      [](const LogLine* a, const LogLine* b) { return *a->valid_loss < *b->valid_loss; });
  const double rise = *lines.back()->valid_loss - *best.valid_loss;
  if (rise < kRising || rise < kRising * *best.valid_loss) return std::nullopt;
  return fmt::format("{:.4f} at step {}, {:.4f} at step {} (training loss {:.4f}, then {:.4f})",
                     *best.valid_loss, best.step, *lines.back()->valid_loss, lines.back()->step,
                     best.loss, lines.back()->loss);
}

Found gradient_spikes(const RunRecord& run) {
  // the first tenth is warm-up
  const size_t begin = run.lines.size() / 10;
  if (run.lines.size() - begin < kFewLines) return std::nullopt;
  std::vector<double> norms;
  for (size_t i = begin; i < run.lines.size(); ++i)
    if (std::isfinite(run.lines[i].grad_norm)) norms.push_back(run.lines[i].grad_norm);
  if (norms.size() < kFewLines) return std::nullopt;
  const double usual = median(norms);
  int64_t spikes = 0;
  const LogLine* largest = nullptr;
  for (size_t i = begin; i < run.lines.size(); ++i) {
    const LogLine& line = run.lines[i];
    if (!(line.grad_norm > kSpike * usual)) continue;
    ++spikes;
    if (largest == nullptr || line.grad_norm > largest->grad_norm) largest = &line;
  }
  if (largest == nullptr || usual <= 0) return std::nullopt;
  return fmt::format("{} of {} logged norms above {} times the median {:.3g}; {:.3g} at step {}",
                     spikes, norms.size(), kSpike, usual, largest->grad_norm, largest->step);
}

Found updates_are_clipped(const RunRecord& run) {
  const double clip = number_at(run.recipe, "/train/clip_norm").value_or(0);
  if (clip <= 0 || run.lines.size() < kFewLines) return std::nullopt;
  const size_t begin = run.lines.size() / 10;
  const auto clipped =
      std::count_if(run.lines.begin() + static_cast<std::ptrdiff_t>(begin), run.lines.end(),
                    [&](const LogLine& line) { return line.grad_norm > clip; });
  const auto n = std::ssize(run.lines) - static_cast<std::ptrdiff_t>(begin);
  if (static_cast<double>(clipped) <= kClipped * static_cast<double>(n)) return std::nullopt;
  return fmt::format(
      "{} of {} logged updates after the first tenth have a gradient norm above "
      "train.clip_norm = {}",
      clipped, n, clip);
}

Found lacks_warmup(const RunRecord& run) {
  if (number_at(run.recipe, "/schedule/warmup").value_or(1) > 0 ||
      !value_at(run.recipe, "/init").is_null())
    return std::nullopt;
  const Json type = value_at(run.recipe, "/optimizer/type");
  return fmt::format("schedule.warmup = 0 with optimizer {}, learning rate {:.3g} from step 1",
                     type.is_string() ? type.get<std::string>() : "adamw",
                     number_at(run.recipe, "/optimizer/lr").value_or(0));
}

Found loss_still_falls(const RunRecord& run) {
  if (run.state == train::RunStatus::running) return std::nullopt;
  const auto lines = evaluated(run);
  if (lines.size() >= 5) {
    const size_t before = lines.size() - 1 - std::max<size_t>(1, lines.size() / 5);
    const double was = *lines[before]->valid_loss, is = *lines.back()->valid_loss;
    if (was - is < kFalling * was) return std::nullopt;
    return fmt::format("validation loss {:.4f} at step {}, {:.4f} at the last one, {}", was,
                       lines[before]->step, is, lines.back()->step);
  }
  const size_t n = run.lines.size(), fifth = n / 5;
  if (fifth < 3) return std::nullopt;
  const double was = mean_loss(run.lines, n - 2 * fifth, n - fifth),
               is = mean_loss(run.lines, n - fifth, n);
  if (was - is < kFalling * was) return std::nullopt;
  return fmt::format(
      "mean training loss {:.4f} in the fifth before the last one, {:.4f} in the last", was, is);
}

Found few_tokens(const RunRecord& run) {
  const auto parameters = static_cast<double>(train::costs_of(run).parameters);
  if (!run.reads_windows() || !value_at(run.recipe, "/init").is_null() || parameters <= 0 ||
      run.lines.empty() || value_at(run.recipe, "/data/train").is_null())
    return std::nullopt;
  const auto tokens = static_cast<double>(run.lines.back().tokens);
  if (tokens >= kTokensPerParameter * parameters) return std::nullopt;
  return fmt::format("{:.3g} tokens for {:.3g} parameters: {:.2g} tokens per parameter, below {}",
                     tokens, parameters, tokens / parameters, kTokensPerParameter);
}

Found many_epochs(const RunRecord& run) {
  // of bytes, a file has as many tokens as bytes
  if (!run.reads_windows() || value_at(run.recipe, "/data/tokenizer") != Json("bytes") ||
      value_at(run.recipe, "/data/format") != Json("text") || run.lines.empty())
    return std::nullopt;
  double bytes = 0;
  const Json files = value_at(run.recipe, "/data/train");
  if (!files.is_array()) return std::nullopt;
  for (const Json& file : files) {
    std::error_code error;
    const auto size =
        file.is_string() ? std::filesystem::file_size(file.get<std::string>(), error) : 0;
    if (error || size == 0) return std::nullopt;
    bytes += static_cast<double>(size);
  }
  bytes *= 1 - number_at(run.recipe, "/data/valid_fraction").value_or(0);
  const double epochs = static_cast<double>(run.lines.back().tokens) / bytes;
  if (!(epochs > kEpochs)) return std::nullopt;
  return fmt::format("{:.1f} epochs over {:.3g} tokens", epochs, bytes);
}

Found no_validation(const RunRecord& run) {
  if (!evaluated(run).empty() || run.lines.empty() || run.state == train::RunStatus::running)
    return std::nullopt;
  const bool held = number_at(run.recipe, "/data/valid_fraction").value_or(0) > 0 ||
                    (value_at(run.recipe, "/data/valid").is_array() &&
                     !value_at(run.recipe, "/data/valid").empty());
  return std::string(held ? "no evaluation in the log"
                          : "neither data.valid nor data.valid_fraction");
}

Found batch_is_off(const RunRecord& run) {
  const LogLine* line = nullptr;
  for (const LogLine& one : run.lines)
    if (one.noise_scale) line = &one;
  if (line == nullptr || line->step <= 0 || *line->noise_scale <= 0) return std::nullopt;
  const double batch = static_cast<double>(line->tokens) / static_cast<double>(line->step),
               noise = *line->noise_scale;
  if (batch < kNoise * noise && noise < kNoise * batch) return std::nullopt;
  return fmt::format("gradient noise scale {:.3g} tokens, {:.3g} tokens per update: {}", noise,
                     batch,
                     batch > noise ? "a smaller batch learns as much per step"
                                   : "a larger batch is worth its cost");
}

Found few_targets(const RunRecord& run) {
  const auto batch = number_at(run.recipe, "/train/batch"),
             times = number_at(run.recipe, "/train/accumulate"),
             length = number_at(run.recipe, "/train/length");
  // masks and answers leave tokens out on purpose
  if (!batch || !times || !length || run.lines.empty() || !run.objective().empty() ||
      !run.reads_windows() || value_at(run.recipe, "/data/train").is_null())
    return std::nullopt;
  const LogLine& last = run.lines.back();
  const double slots = *batch * *times * *length * static_cast<double>(last.step),
               share = static_cast<double>(last.tokens) / slots;
  if (!(slots > 0) || share >= kTargets) return std::nullopt;
  return fmt::format("{:.0f} % of batch x length tokens are targets; {:.0f} of {:.0f} per update",
                     100 * share, share * *batch * *times * *length, *batch * *times * *length);
}

Found experts_are_uneven(const RunRecord& run) {
  for (auto line = run.lines.rbegin(); line != run.lines.rend(); ++line) {
    if (!line->experts.is_object()) continue;
    for (const auto& [router, use] : line->experts.items()) {
      const Json load = use.is_object() ? use.value("load", Json()) : Json();
      if (!load.is_array() || load.size() < 2) continue;
      double sum = 0, most = 0, idle = 0;
      for (const Json& one : load) {
        if (!one.is_number()) continue;
        sum += one.get<double>();
        most = std::max(most, one.get<double>());
      }
      const double even = sum / static_cast<double>(load.size());
      for (const Json& one : load) idle += one.is_number() && one.get<double>() < even / 10 ? 1 : 0;
      if (even > 0 && (most > kBusyExpert * even || 2 * idle >= static_cast<double>(load.size())))
        return fmt::format(
            "step {}, {}: the busiest of {} experts has {:.1f} times an even share, "
            "{:.0f} have under a tenth of it",
            line->step, router, load.size(), most / even, idle);
    }
    return std::nullopt;  // the last line with experts counts
  }
  return std::nullopt;
}

Found has_warnings(const RunRecord& run) {
  int64_t n = 0;
  std::string first;
  for (const LogLine& line : run.lines)
    for (const auto* texts : {&line.warnings, &line.alarms})
      for (const std::string& text : *texts) {
        if (n == 0) first = fmt::format("step {}: {}", line.step, text);
        ++n;
      }
  if (n == 0) return std::nullopt;
  return fmt::format("{} in the log; {}", n, first);
}

Found stopped_before_the_end(const RunRecord& run) {
  if (run.state == train::RunStatus::running || run.lines.empty() || run.steps() == 0)
    return std::nullopt;
  const LogLine& last = run.lines.back();
  if (!last.stopped.empty() || last.step >= run.steps()) return std::nullopt;
  return fmt::format("{} of {} steps, learning rate {:.3g}", last.step, run.steps(), last.lr);
}

Evidence page(const char* path, const char* says) {
  return {.page = path, .says = says, .paper = {}, .title = {}};
}
Evidence paper(const char* id, const char* title) {
  return {.page = {}, .says = {}, .paper = id, .title = title};
}

/// A rule, and its check of a single run; null: of learning rates over runs.
struct RunCheck {
  CheckRule rule;
  Found (*check)(const RunRecord& run);
};

const std::vector<RunCheck>& run_checks() {
  static const std::vector<RunCheck> all = {
      {{"diverges",
        "The loss rises by more than a nat above its minimum",
        "A smaller learning rate, a longer warm-up, pre-norm, query/key norm; "
        "\"stop\": {\"diverged\": 1} ends such runs",
        {page("guide/training.md", "### Instability: NaN, loss spikes, divergence"),
         paper("arXiv:2309.14322",
               "Small-scale proxies for large-scale Transformer training "
               "instabilities")}},
       loss_diverges},
      {{"rate_at_the_end",
        "The best learning rate is at an end of the grid",
        "Add rates beyond that end, until the best one is inside",
        {page("howto/learning_rate.md", "an end of its grid"),
         paper("arXiv:2309.14322",
               "Small-scale proxies for large-scale Transformer training "
               "instabilities")}},
       nullptr},
      {{"overfits",
        "The validation loss rises",
        "Early stopping (\"stop\", \"checkpoint\": {\"best\": 1}), dropout, weight decay, more "
        "data, a smaller model",
        {page("howto/early_stopping.md", "stop"),
         paper("arXiv:2305.16264", "Scaling Data-Constrained Language Models")}},
       valid_loss_rises},
      {{"spikes",
        "Gradient norm spikes",
        "A smaller learning rate or a longer warm-up, train.clip_norm near the usual norm, a "
        "smaller second beta (0.95); look at the data of these steps",
        {paper("arXiv:2312.16903",
               "Spike No More: Stabilizing the Pre-training of Large Language "
               "Models"),
         paper("arXiv:2204.02311", "PaLM, section 5.1")}},
       gradient_spikes},
      {{"clipped",
        "Most updates are clipped",
        "The limit replaces the learning rate: raise train.clip_norm above the usual norm, or "
        "lower the learning rate",
        {paper("arXiv:1211.5063", "On the difficulty of training Recurrent Neural Networks"),
         page("guide/training.md", "### Gradient clipping and weight decay")}},
       updates_are_clipped},
      {{"no_warmup",
        "No warm-up",
        "\"schedule\": {\"warmup_fraction\": 0.02} or more, above all with post-norm and Adam",
        {paper("arXiv:2002.04745", "On Layer Normalization in the Transformer Architecture"),
         paper("arXiv:1706.02677", "Accurate, Large Minibatch SGD, section 2.2")}},
       lacks_warmup},
      {{"experts_uneven",
        "Experts are used unevenly",
        "A load-balancing loss of the router (\"losses\") or a balancing bias (\"balance\"), a "
        "larger batch",
        {paper("arXiv:2101.03961", "Switch Transformers, section 2.2"),
         paper("arXiv:2408.15664", "Auxiliary-Loss-Free Load Balancing Strategy")}},
       experts_are_uneven},
      {{"still_falling",
        "The loss still falls at the end",
        "Train longer (--resume with more train.steps), or a larger learning rate; with a schedule "
        "that decays, compare runs of whole schedules only",
        {paper("arXiv:2203.15556", "Training Compute-Optimal Large Language Models"),
         paper("arXiv:2405.18392",
               "Scaling Laws and Compute-Optimal Training Beyond Fixed Training "
               "Durations")}},
       loss_still_falls},
      {{"few_tokens",
        "Few tokens per parameter",
        "A smaller model or more tokens: about 20 tokens per parameter are best for a training "
        "budget, more where inference counts",
        {paper("arXiv:2203.15556", "Training Compute-Optimal Large Language Models")}},
       few_tokens},
      {{"many_epochs",
        "Many epochs over the same text",
        "More data; beyond about 4 epochs repeated tokens are worth less than new ones",
        {paper("arXiv:2305.16264", "Scaling Data-Constrained Language Models")}},
       many_epochs},
      {{"batch",
        "The batch is far from the gradient noise scale",
        "Far below it a doubled batch is worth twice the steps, far above it hardly more "
        "(train.batch, train.accumulate)",
        {paper("arXiv:1812.06162", "An Empirical Model of Large-Batch Training")}},
       batch_is_off},
      {{"few_targets",
        "Few tokens of a window are targets",
        "A shorter train.length, or longer documents: short windows make updates of few tokens. "
        "Batches are packed, padding costs no time",
        {page("guide/training.md", "pack")}},
       few_targets},
      {{"no_validation",
        "No validation loss",
        "\"data\": {\"valid_fraction\": 0.1} or data.valid, and train.eval_every",
        {page("howto/early_stopping.md", "valid")}},
       no_validation},
      {{"cut",
        "The run ended before its last step",
        "--resume: the learning rate has not decayed as scheduled. A loss that is not "
        "finite "
        "ends a run too: a smaller learning rate, a longer warm-up",
        {page("howto/continue_a_run.md", "--resume"),
         page("guide/training.md", "### Instability: NaN, loss spikes, divergence")}},
       stopped_before_the_end},
      {{"warnings",
        "The log has warnings",
        "Read `tessera runs RUN`",
        {page("guide/training.md", "### Warnings at the first steps")}},
       has_warnings}};
  return all;
}

/// The score of a run of a grid: its least validation loss, else the mean loss at its end.
std::optional<double> score_of(const RunRecord& run) {
  if (const LogLine* best = run.best()) return *best->valid_loss;
  const size_t n = run.lines.size(), tenth = std::max<size_t>(1, n / 10);
  return n == 0 ? std::nullopt : std::optional(mean_loss(run.lines, n - tenth, n));
}

/// Runs of each learning rate, by the rest of their recipes.
std::vector<Finding> check_rates(const std::vector<RunRecord>& runs, const CheckRule& rule) {
  struct Rate {
    double sum = 0;
    int64_t n = 0;
    std::string run;
  };
  std::map<std::string, std::map<double, Rate>> grids;
  for (const RunRecord& run : runs) {
    const auto lr = number_at(run.recipe, "/optimizer/lr");
    const auto score = score_of(run);
    if (!lr || !score) continue;
    Json rest = run.recipe;
    rest["optimizer"].erase("lr");
    if (rest.contains("train") && rest["train"].is_object()) rest["train"].erase("seed");
    Rate& rate = grids[rest.dump()][*lr];
    rate.sum += *score;
    ++rate.n;
    rate.run = run.name;
  }
  std::vector<Finding> out;
  for (const auto& [rest, rates] : grids) {
    if (rates.size() < 2) continue;
    const auto mean = [](const auto& one) {
      return one.second.sum / static_cast<double>(one.second.n);
    };
    const auto best =
        std::min_element(rates.begin(), rates.end(),
                         [&](const auto& a, const auto& b) { return mean(a) < mean(b); });
    const bool least = best == rates.begin(), most = std::next(best) == rates.end();
    if (!least && !most) continue;
    std::vector<std::string> shown;
    for (const auto& one : rates)
      shown.push_back(fmt::format("{:.3g}: {:.4f}", one.first, mean(one)));
    out.push_back(
        {&rule, best->second.run,
         fmt::format("{:.3g} is the {} of {} rates ({})", best->first,
                     least ? "smallest" : "largest", rates.size(), fmt::join(shown, ", "))});
  }
  return out;
}

}  // namespace

const std::vector<CheckRule>& check_rules() {
  static const std::vector<CheckRule> rules = [] {
    std::vector<CheckRule> out;
    for (const RunCheck& one : run_checks()) out.push_back(one.rule);
    return out;
  }();
  return rules;
}

std::vector<Finding> check_runs(const std::vector<RunRecord>& runs) {
  std::vector<Finding> out;
  const std::vector<RunCheck>& checks = run_checks();
  for (size_t i = 0; i < checks.size(); ++i)
    if (checks[i].check == nullptr)
      for (Finding& one : check_rates(runs, check_rules()[i])) out.push_back(std::move(one));
  for (const RunRecord& run : runs)
    for (size_t i = 0; i < checks.size(); ++i)
      if (checks[i].check != nullptr)
        if (Found found = checks[i].check(run))
          out.push_back({&check_rules()[i], run.name, std::move(*found)});
  return out;
}

std::string checks_markdown() {
  std::string out = "| id | problem | remedy | source |\n|---|---|---|---|\n";
  for (const CheckRule& rule : check_rules()) {
    std::vector<std::string> sources;
    for (const Evidence& one : rule.evidence)
      sources.push_back(one.page.empty() ? fmt::format("[{}](https://arxiv.org/abs/{})", one.title,
                                                       one.paper.substr(one.paper.find(':') + 1))
                                         : fmt::format("[{}](../{})", one.page, one.page));
    out += fmt::format("| `{}` | {} | {} | {} |\n", rule.id, rule.problem, rule.remedy,
                       fmt::join(sources, "; "));
  }
  return out;
}

}  // namespace tessera::analysis
