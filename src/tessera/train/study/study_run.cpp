#include "tessera/train/study/study_run.h"

#include <chrono>
#include <cmath>

#include "tessera/base/cpu.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/sha256.h"
#include "tessera/base/threads.h"
#include "tessera/model/model.h"
#include "tessera/model/state.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/loop/trial_steps.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// Of the search, which no run that is compared has.
constexpr int64_t kSearchSeed = 0;

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

class StudyRunner {
 public:
  StudyRunner(const Study& study, const fs::path& out, const StudyOptions& options)
      : study_(study), out_(out), options_(options) {}

  void search(const StudyEntry& entry, EntryResult& result) {
    RateSearch search(study_.rates_of(entry));
    while (const auto trial = search.next()) {
      const auto steps =
          std::max<int64_t>(1, std::llround(trial->fraction * static_cast<double>(entry.steps)));
      const Ended ended = run(entry, {steps, trial->rate, kSearchSeed, false});
      search.add(ended.run ? *ended.run->lines.back().valid_loss : INFINITY);
    }
    result.trials = search.trials();
    result.facts.rate = search.best();
    result.facts.rate_at_end = search.at_end();
    say(fmt::format("{}: learning rate {:g}{}", entry.name, search.best(),
                    search.at_end() ? ", at an end of those that were tried" : ""));
  }

  /// Trains it, goes on with it, or finds it done.
  Ended run(const StudyEntry& entry, const StudyRun& which) {
    const fs::path folder = out_ / "runs" / name_of(entry, which);
    const Recipe recipe = recipe_of(entry, which);
    if (const std::optional<Ended> done = known(folder, recipe)) {
      tell(entry, which, *done, "already trained");
      return *done;
    }
    const auto begin = std::chrono::steady_clock::now();
    Ended ended;
    TrainOptions train_options;
    train_options.resume = true;
    train_options.cancel = options_.cancel;
    train_options.on_step = options_.on_step;
    train_options.cache = out_ / "cache";
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
    return ended;
  }

 private:
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
    if (const std::string key = differing_key(found.recipe, resolve(recipe)); !key.empty())
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
};

/// Of times.json; nothing where a value is missing.
std::optional<TrialTimes> times_in(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"update_seconds", "pass_seconds", "passes"})
    if (!json.contains(key) || !json[key].is_number()) return std::nullopt;
  return TrialTimes{json["update_seconds"].get<double>(), json["pass_seconds"].get<double>(),
                    json["passes"].get<int64_t>()};
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
        sha256(resolve(recipe).dump() + std::to_string(thread_count()) + cpu_info().model);
    if (const auto read = times_in(known.value(key, Json()))) {
      times.push_back(*read);
      continue;
    }
    if (options.say)
      options.say(fmt::format("{}: timing a few updates and evaluations", entry.name));
    times.push_back(trial_times(recipe, out / "cache", options.cancel));
    known[key] = {{"update_seconds", times.back().update_seconds},
                  {"pass_seconds", times.back().pass_seconds},
                  {"passes", times.back().passes}};
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
  const std::vector<TrialTimes> times = times_of(study, out, options);
  const std::vector<EntryFacts> facts = orders_of(study, out / "cache", options.cancel);
  result.machine = fmt::format("{}, {} threads", cpu_info().model, thread_count());
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
      Ended ended = runner.run(entry, {entry.steps, own.facts.rate, seed, true});
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

}  // namespace tessera::train
