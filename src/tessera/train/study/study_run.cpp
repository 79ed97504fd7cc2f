#include "tessera/train/study/study_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "tessera/base/cpu.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/sha256.h"
#include "tessera/base/threads.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/model.h"
#include "tessera/model/state.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/loop/trial_steps.h"
#include "tessera/train/study/halving.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// A run that ended: with what it reached, or why it has nothing.
struct Ended {
  std::optional<RunRecord> run = {};
  std::string failure = {};
  std::vector<double> blocks = {};  // EntryResult::blocks
};

/// Nats and targets of a block of validation.
using Block = std::pair<double, int64_t>;

/// Means of neighbouring blocks, at most 256 of them.
std::vector<double> means_of(const std::vector<Block>& blocks) {
  constexpr size_t kMost = 256;
  std::vector<double> out;
  const size_t each = (blocks.size() + kMost - 1) / kMost;
  for (size_t begin = 0; begin < blocks.size(); begin += each) {
    Block sum{0, 0};
    for (size_t i = begin; i < std::min(begin + each, blocks.size()); ++i)
      sum.first += blocks[i].first, sum.second += blocks[i].second;
    if (sum.second > 0) out.push_back(sum.first / static_cast<double>(sum.second));
  }
  return out;
}

fs::path cache_of(const fs::path& out, const StudyOptions& options) {
  return options.cache.empty() ? out / "cache" : options.cache;
}

class StudyRunner {
 public:
  StudyRunner(const Study& study, const fs::path& out, const StudyOptions& options)
      : study_(study), out_(out), options_(options) {}

  void search(const StudyEntry& entry, EntryResult& result) {
    RateSearch search(study_.rates_of(entry));
    while (const auto trial = search.next()) {
      search.add(
          loss_of(entry, {entry.steps_of(trial->fraction), trial->rate, kSearchSeed, false}));
    }
    result.trials = search.trials();
    result.seconds += take_seconds();
    result.facts.rate = search.best();
    result.facts.rate_at_end = search.at_end();
    say(fmt::format("{}: learning rate {:g}{}", entry.name, search.best(),
                    search.at_end() ? ", at an end of those that were tried" : ""));
  }

  /// What a run reaches at its end; infinite if it failed.
  double loss_of(const StudyEntry& entry, const StudyRun& which) {
    const Ended ended = run(entry, which);
    return ended.run ? *ended.run->lines.back().valid_loss : INFINITY;
  }

  /// Trains it, resumes it, or finds it done.
  Ended run(const StudyEntry& entry, const StudyRun& which) {
    const fs::path folder = out_ / "runs" / name_of(entry, which);
    const Recipe recipe = recipe_of(entry, which);
    if (const std::optional<Ended> done = known(folder, recipe)) {
      tell(entry, which, *done, "already trained");
      add_seconds(*done);
      return *done;
    }
    const auto begin = std::chrono::steady_clock::now();
    Ended ended;
    TrainOptions train_options;
    train_options.resume = true;
    train_options.cancel = options_.cancel;
    train_options.device = options_.device;
    train_options.on_step = options_.on_step;
    train_options.cache = cache_of(out_, options_);
    std::vector<Block> blocks;
    if (which.curve)
      train_options.on_block = [&](double nats, int64_t targets) {
        blocks.emplace_back(nats, targets);
      };
    try {
      train(recipe, folder, train_options);
      ended.run = read_runs({folder}).at(0);
      if (!ended.run->lines.back().valid_loss)
        fail(ErrorKind::usage, "compare", "{} has no validation loss; expected validation data",
             folder.string());
      ended.blocks = means_of(blocks);
      if (which.curve)
        write_file_atomically(folder / "blocks.json", Json(ended.blocks).dump() + "\n");
    } catch (const Error& error) {
      // a run that diverges is a result; what is wrong with recipe, file or disk is not
      if (error.kind() != ErrorKind::input) throw;
      ended.failure = error.what();
      write_file_atomically(folder / "failed.txt", ended.failure + "\n");
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    tell(entry, which, ended, fmt::format("{:.0f} s", seconds.count()));
    add_seconds(ended);
    return ended;
  }

  /// Seconds of the runs since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

  /// Evaluates a run that has ended at evaluate.lengths, or reads what it has found.
  std::vector<LengthResult> lengths(const StudyEntry& entry, const StudyRun& which) const {
    const fs::path folder = out_ / "runs" / name_of(entry, which), file = folder / "lengths.json";
    std::vector<LengthResult> out, known;
    if (fs::exists(file))
      for (const Json& one : spec::read_json_file(file))
        known.push_back({one.at("length").get<int64_t>(), one.at("valid_loss").get<double>(),
                         one.at("accuracy").get<double>()});
    std::optional<infer::LoadedModel> loaded;
    for (const int64_t length : study_.evaluate.lengths) {
      const auto found = std::find_if(known.begin(), known.end(), [&](const LengthResult& one) {
        return one.length == length;
      });
      if (found != known.end()) {
        out.push_back(*found);
        continue;
      }
      if (!loaded) loaded = infer::load_model(folder / "latest");
      if (const auto one = at_length(entry, which, loaded->model, length)) out.push_back(*one);
    }
    Json json = Json::array();
    for (const LengthResult& one : out)
      json.push_back(
          {{"length", one.length}, {"valid_loss", one.loss}, {"accuracy", one.accuracy}});
    if (loaded) write_file_atomically(file, json.dump() + "\n");
    return out;
  }

 private:
  /// Nothing for a length that the model has no positions for.
  std::optional<LengthResult> at_length(const StudyEntry& entry,
                                        const StudyRun& which,
                                        const model::Model& model,
                                        int64_t length) const {
    StudyEntry other = entry;
    other.recipe["train"]["length"] = length;
    try {
      const Recipe recipe = recipe_of(other, which);
      const auto objective = open_objective(recipe, cache_of(out_, options_), options_.cancel);
      // as many tokens in a call as in training
      const int64_t batch = std::max<int64_t>(1, recipe.train.batch * entry.length / length);
      const Evaluation found =
          objective->evaluate(model, {.batch = batch, .cancel = options_.cancel});
      say(fmt::format("{}  at {} tokens: valid loss {:.4f}, accuracy {:.4f}", entry.name, length,
                      found.loss, found.accuracy));
      return LengthResult{length, found.loss, found.accuracy};
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::cancelled) throw;
      say(fmt::format("{}  at {} tokens: {}", entry.name, length, error.what()));
      return std::nullopt;
    }
  }

  void add_seconds(const Ended& ended) {
    if (ended.run && !ended.run->lines.empty()) seconds_ += ended.run->lines.back().seconds;
  }

  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  void tell(const StudyEntry& entry,
            const StudyRun& which,
            const Ended& ended,
            const std::string& how) const {
    say(fmt::format("{}  {}  ({})", name_of(entry, which),
                    ended.run
                        ? fmt::format("valid loss {:.4f}", *ended.run->lines.back().valid_loss)
                        : "failed: " + ended.failure,
                    how));
  }

  /// The result of a run that has ended; nothing where it has not. Throws Error(usage) for a run
  /// of another recipe.
  std::optional<Ended> known(const fs::path& folder, const Recipe& recipe) const {
    if (!fs::exists(folder / "recipe.json")) return std::nullopt;
    const RunRecord found = read_runs({folder}).at(0);
    if (const std::string key = differing_key(with_present_defaults(found.recipe), resolve(recipe));
        !key.empty())
      fail(ErrorKind::usage, "compare",
           "{} is a run of another recipe ({} differs); expected another --out, or that folder "
           "removed",
           folder.string(), key);
    if (fs::exists(folder / "failed.txt")) {
      std::string failure = read_text_file(folder / "failed.txt");
      failure.erase(failure.find_last_not_of('\n') + 1);
      return Ended{.failure = failure};
    }
    if (found.state != RunStatus::complete || !found.lines.back().valid_loss) return std::nullopt;
    Ended ended{.run = found};
    // a run that was killed as it ended has none
    if (fs::exists(folder / "blocks.json"))
      for (const Json& block : spec::read_json_file(folder / "blocks.json"))
        if (block.is_number()) ended.blocks.push_back(block.get<double>());
    return ended;
  }

  const Study& study_;
  const fs::path& out_;
  const StudyOptions& options_;
  double seconds_ = 0;
};

/// Of times.json; nothing where a value is missing.
std::optional<TrialTimes> times_in(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"update_seconds", "pass_seconds", "passes"})
    if (!json.contains(key) || !json[key].is_number()) return std::nullopt;
  return TrialTimes{json["update_seconds"].get<double>(), json["pass_seconds"].get<double>(),
                    json["passes"].get<int64_t>()};
}

fs::path size_folder(const fs::path& out, size_t size) {
  return out / fmt::format("size-{}", size + 1);
}

/// All sizes read the same tokens.
StudyOptions options_of_size(const fs::path& out, const StudyOptions& options) {
  StudyOptions own = options;
  own.cache = cache_of(out, options);
  return own;
}

/// Tokens per second of one sequence after `context` tokens; nothing without a state.
std::optional<double> decode_speed(const Recipe& recipe,
                                   int64_t context,
                                   const CancelToken* cancel) {
  if (recipe.spec.encoder || !recipe.spec.no_state_reason().empty()) return std::nullopt;
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 0));
  constexpr int64_t kTokens = 32, kRepeats = 3;
  const at::NoGradGuard no_gradients;
  std::vector<double> speeds;
  for (int64_t repeat = 0; repeat < kRepeats; ++repeat) {
    model::State state(model.spec(), 1);
    model::ForwardOptions options;
    options.state = &state;
    options.cancel = cancel;
    const auto feed = [&](int64_t tokens) {
      nn::Batch batch =
          nn::Batch::of({std::vector<int64_t>(static_cast<size_t>(tokens), 1)}, {state.length(0)});
      // the first call is given; later ones see what was before them
      for (nn::Segment& segment : batch.segments)
        segment.prefix = state.length(0) == 0 ? tokens : 1;
      const Tensor hidden = model.hidden(batch, options);
      model.logits(hidden.slice(0, hidden.size(0) - 1));
    };
    if (context > 0) feed(context);
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < kTokens; ++i) feed(1);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    speeds.push_back(static_cast<double>(kTokens) / seconds.count());
  }
  std::sort(speeds.begin(), speeds.end());
  return speeds[speeds.size() / 2];
}

}  // namespace

std::vector<TrialTimes> times_of(const Study& study,
                                 const fs::path& out,
                                 const StudyOptions& options) {
  const fs::path file = out / "times.json";
  Json known = fs::exists(file) ? spec::read_json_file(file) : Json::object();
  if (!known.is_object()) known = Json::object();
  std::vector<TrialTimes> times;
  for (const StudyEntry& entry : study.entries) {
    const Recipe recipe = recipe_of(entry, {entry.steps, entry.rate, kSearchSeed, false});
    const std::string key =
        sha256(resolve(recipe).dump() + std::to_string(thread_count()) + cpu_info().model +
               (options.device.is_cpu() ? "" : options.device.str()));
    if (const auto read = times_in(known.value(key, Json()))) {
      times.push_back(*read);
      continue;
    }
    if (options.say)
      options.say(fmt::format("{}: timing a few updates and evaluations", entry.name));
    times.push_back(trial_times(recipe, cache_of(out, options), options.cancel, options.device));
    known[key] = {{"update_seconds", times.back().update_seconds},
                  {"pass_seconds", times.back().pass_seconds},
                  {"passes", times.back().passes}};
    create_folder(out);
    write_file_atomically(file, known.dump(2) + "\n");
  }
  return times;
}

std::vector<EntryFacts> orders_of(const Study& study,
                                  const fs::path& cache,
                                  const CancelToken* cancel) {
  std::vector<EntryFacts> out;
  for (const StudyEntry& entry : study.entries) {
    EntryFacts facts;
    facts.rate = entry.rate;
    for (const int64_t seed : study.seeds) {
      const Recipe recipe = recipe_of(entry, {entry.steps, entry.rate, seed, true});
      const std::unique_ptr<Dataset> source = open_source(recipe, cache, cancel);
      facts.orders[seed] = order_of(*source, recipe.train, study.common_steps());
      if (facts.validation.empty()) facts.validation = validation_of(*source);
    }
    out.push_back(std::move(facts));
  }
  return out;
}

StudyResult run_study(const Study& study, const fs::path& out, const StudyOptions& options) {
  StudyResult result;
  const std::vector<TrialTimes> times =
      options.times ? times_of(study, out, options) : std::vector<TrialTimes>(study.entries.size());
  const std::vector<EntryFacts> facts = orders_of(study, cache_of(out, options), options.cancel);
  result.machine = fmt::format("{}, {} thread{}", cpu_info().model, thread_count(),
                               thread_count() == 1 ? "" : "s");
  StudyRunner runner(study, out, options);
  for (size_t i = 0; i < study.entries.size(); ++i) {
    EntryResult entry{.facts = facts[i], .step_seconds = times[i].update_seconds};
    if (study.tunes()) runner.search(study.entries[i], entry);
    result.entries.push_back(std::move(entry));
  }
  // seed by seed: a study that is interrupted has whole pairs
  for (const int64_t seed : study.seeds)
    for (size_t i = 0; i < study.entries.size(); ++i) {
      const StudyEntry& entry = study.entries[i];
      EntryResult& own = result.entries[i];
      const StudyRun which{entry.steps, own.facts.rate, seed, true};
      Ended ended = runner.run(entry, which);
      own.seconds += runner.take_seconds();
      own.lengths.push_back(ended.run ? runner.lengths(entry, which) : std::vector<LengthResult>());
      if (!ended.failure.empty()) own.facts.failed[seed] = ended.failure;
      own.runs.push_back(std::move(ended.run));
      own.blocks.push_back(std::move(ended.blocks));
    }
  if (study.evaluate.decode)
    for (size_t i = 0; i < study.entries.size(); ++i) {
      const StudyEntry& entry = study.entries[i];
      const int64_t context = study.evaluate.context > 0 ? study.evaluate.context : entry.length;
      result.entries[i].decode_tokens_per_s = decode_speed(
          recipe_of(entry, {entry.steps, entry.rate, kSearchSeed, false}), context, options.cancel);
    }
  return result;
}

ScalingResult run_scaling(const ScalingStudy& scaling,
                          const fs::path& out,
                          const StudyOptions& options) {
  ScalingResult result;
  result.points.resize(scaling.sizes.front().entries.size());
  for (size_t size = 0; size < scaling.sizes.size(); ++size) {
    const Study& study = scaling.sizes[size];
    const fs::path folder = size_folder(out, size);
    const StudyOptions own = options_of_size(out, options);
    result.sizes.push_back(run_study(study, folder, own));
    StudyRunner runner(study, folder, own);
    for (size_t i = 0; i < study.entries.size(); ++i) {
      const StudyEntry& entry = study.entries[i];
      const EntryResult& whole = result.sizes.back().entries[i];
      const std::vector<std::optional<double>> losses = whole.losses();
      for (const double budget : scaling.how.budgets)
        for (size_t s = 0; s < study.seeds.size(); ++s) {
          const int64_t steps = entry.steps_of(budget), seed = study.seeds[s];
          const double loss = budget == 1
                                  ? losses[s].value_or(INFINITY)
                                  : runner.loss_of(entry, {steps, whole.facts.rate, seed, false});
          if (std::isfinite(loss))
            result.points[i].push_back({{static_cast<double>(entry.body_parameters),
                                         static_cast<double>(steps * entry.tokens_per_step), loss},
                                        size,
                                        budget,
                                        seed});
          else if (budget < 1)
            result.findings.push_back(
                {"failed", true,
                 fmt::format("size {}: {}, seed {}: the run of {} steps has no loss", size + 1,
                             entry.name, seed, steps)});
        }
    }
  }
  return result;
}

std::string scaling_plan(const ScalingStudy& scaling,
                         const fs::path& out,
                         const StudyOptions& options) {
  std::string text;
  double seconds = 0;
  for (size_t size = 0; size < scaling.sizes.size(); ++size) {
    const Study& study = scaling.sizes[size];
    const std::vector<TrialTimes> times =
        times_of(study, size_folder(out, size), options_of_size(out, options));
    text += fmt::format("size {}\n{}\n", size + 1, plan_text(study, times));
    for (size_t i = 0; i < study.entries.size(); ++i) {
      seconds += seconds_of(study, study.entries[i], times[i]);
      for (const double budget : scaling.how.budgets)
        if (budget < 1)
          seconds += static_cast<double>(study.seeds.size()) *
                     seconds_of_part(study.entries[i], budget, times[i]);
    }
  }
  return text + fmt::format(
                    "scaling law: {} sizes, {} parts of the budget; about {:.1f} minutes of "
                    "training and evaluation in all\n",
                    scaling.sizes.size(), scaling.how.budgets.size(), seconds / 60);
}

SearchResult run_search(const LayoutSearch& search,
                        const fs::path& out,
                        const StudyOptions& options) {
  const std::vector<LayoutTrial> trials = trials_of(search);
  Halving halving(trials.size());
  StudyRunner runner(search.study, out, options);
  while (const auto trial = halving.next()) {
    const LayoutTrial& one = trials[trial->candidate];
    const StudyEntry& entry = search.study.entries[one.entry];
    halving.add(
        runner.loss_of(entry, {entry.steps_of(trial->fraction), one.rate, kSearchSeed, false}));
  }
  const std::vector<RankedLayout> ranking = ranked_layouts(trials, halving);
  SearchResult out_of{final_study(search, ranking), {}};
  out_of.result = run_study(out_of.study, out, options);
  out_of.result.parts.push_back(search_part(search, ranking));
  return out_of;
}

std::string search_plan(const LayoutSearch& search,
                        const fs::path& out,
                        const StudyOptions& options) {
  // a few candidates stand for all
  constexpr size_t kTimed = 4;
  Study timed = search.study;
  timed.entries.resize(search.baselines);
  const size_t candidates = search.candidates(), some = std::min(kTimed, candidates);
  for (size_t k = 0; k < some; ++k)
    timed.entries.push_back(
        search.study
            .entries[search.baselines + k * (candidates - 1) / std::max<size_t>(1, some - 1)]);
  timed.reference = timed.entries.front().name;
  const std::vector<TrialTimes> times = times_of(timed, out, options);
  double seconds = 0, budget = 0, compared = 0;
  for (size_t i = 0; i < timed.entries.size(); ++i) {
    const double all = seconds_of(search.study, timed.entries[i], times[i]);
    if (i < search.baselines) {
      seconds += all;
    } else {
      budget += seconds_of_part(timed.entries[i], 1, times[i]) / static_cast<double>(some);
      compared += all / static_cast<double>(some);
    }
  }
  const size_t trials = trials_of(search).size();
  const auto finalists =
      static_cast<double>(std::min(candidates, static_cast<size_t>(search.how.finalists)));
  seconds += budget * cost_of_halving(trials) + compared * finalists;
  return plan_table(timed, times) +
         fmt::format(
             "\nlayout search: {} candidates, {} runs in the first round ({:g} "
             "budgets), {} layouts compared; about {:.1f} minutes of training and "
             "evaluation on this machine\n",
             candidates, trials, cost_of_halving(trials), finalists, seconds / 60);
}

}  // namespace tessera::train
