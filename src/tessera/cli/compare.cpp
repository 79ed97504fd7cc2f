#include <charconv>
#include <filesystem>
#include <optional>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/amount.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/temporary_cache.h"
#include "tessera/cli/train_progress.h"
#include "tessera/train/study/study_run.h"

namespace tessera::cli {
namespace compare_verb {

namespace fs = std::filesystem;

struct CompareArgs {
  std::vector<std::string> files;
  std::string out, equal, key, tokens, flops, rates, reference;
  std::optional<int64_t> steps, multiple, seeds;
  std::optional<double> tolerance;
  bool decode = false, dry_run = false, json = false, verbose = false, force = false;
  int threads = 0;
};

/// The options as keys of a study.
Json changes_of(const CompareArgs& o) {
  Json changes = Json::object();
  const auto set = [&](const char* section, const char* key, Json value) {
    changes[section][key] = std::move(value);
  };
  if (!o.equal.empty()) set("equal", "by", o.equal);
  if (!o.key.empty()) set("equal", "key", o.key);
  if (o.multiple) set("equal", "multiple_of", *o.multiple);
  if (o.tolerance) set("equal", "tolerance", *o.tolerance);
  const int budgets = (o.tokens.empty() ? 0 : 1) + (o.flops.empty() ? 0 : 1) + (o.steps ? 1 : 0);
  if (budgets > 1)
    fail(ErrorKind::usage, "compare",
         "several budgets; expected one of --tokens, --steps, --flops");
  // null takes away what the study says
  if (budgets == 1)
    changes["budget"] = {{"tokens", nullptr}, {"steps", nullptr}, {"flops", nullptr}};
  if (!o.tokens.empty()) set("budget", "tokens", amount_of("--tokens", o.tokens));
  if (!o.flops.empty()) set("budget", "flops", amount_of("--flops", o.flops));
  if (o.steps) set("budget", "steps", *o.steps);
  if (o.seeds) changes["seeds"] = *o.seeds;
  if (!o.reference.empty()) changes["reference"] = o.reference;
  if (o.decode) set("evaluate", "decode", true);
  if (o.rates == "tune" || o.rates == "shared") {
    changes["learning_rates"] = o.rates;
  } else if (!o.rates.empty()) {
    Json rates = Json::array();
    for (size_t begin = 0; begin <= o.rates.size();) {
      const size_t end = std::min(o.rates.find(',', begin), o.rates.size());
      const std::string text = o.rates.substr(begin, end - begin);
      double rate = 0;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
      if (error != std::errc() || stop != text.data() + text.size() || !(rate > 0))
        fail(ErrorKind::usage, "compare",
             "--learning-rates \"{}\"; expected tune, shared, or rates above 0 such as "
             "1e-3,2e-3,4e-3",
             text);
      rates.push_back(rate);
      begin = end + 1;
    }
    changes["learning_rates"] = std::move(rates);
  }
  return changes;
}

std::string command_of(const CompareArgs& o) {
  std::string text = "tessera compare";
  for (const std::string& file : o.files) text += " " + file;
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) text += fmt::format(" {} {}", option, value);
  };
  const auto number = [](const auto& value) {
    return value ? fmt::format("{}", *value) : std::string();
  };
  add("--equal", o.equal);
  add("--key", o.key);
  add("--multiple-of", number(o.multiple));
  add("--tolerance", number(o.tolerance));
  add("--tokens", o.tokens);
  add("--steps", number(o.steps));
  add("--flops", o.flops);
  add("--learning-rates", o.rates);
  add("--seeds", number(o.seeds));
  add("--reference", o.reference);
  if (o.decode) text += " --decode";
  return text + " --out " + o.out;
}

bool is_study_folder(const fs::path& out) {
  return fs::exists(out / "study.json");
}

int compare(const CompareArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (o.out.empty() && !o.dry_run)
    fail(ErrorKind::usage, "compare", "--out is missing; expected a folder, or --dry-run");
  if (!o.out.empty()) check_out_place("compare", o.out, o.force, is_study_folder);
  const train::Study study = train::load_study({o.files.begin(), o.files.end()}, changes_of(o));
  std::optional<TemporaryCache> temporary;
  const fs::path out = o.out.empty() ? temporary.emplace().path() : fs::path(o.out);
  create_folder(out);
  write_file_atomically(out / "study.json", train::to_json(study).dump(2) + "\n");
  train::StudyOptions options;
  options.cancel = &cancel_token();
  options.say = [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
    std::fflush(stderr);
  };
  TrainProgress progress;
  if (o.verbose)
    options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  const std::vector<train::TrialTimes> times = train::times_of(study, out, options);
  fmt::print(stderr, "{}", train::plan_text(study, times));
  for (const train::Finding& finding :
       train::findings_of(study, train::orders_of(study, out / "cache", &cancel_token())))
    fmt::print(stderr, "tessera: {}{}\n", finding.unfair ? "unfair: " : "note: ", finding.text);
  if (o.dry_run) return kExitOk;
  train::StudyResult result;
  try {
    result = train::run_study(study, out, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    fail(ErrorKind::cancelled, "compare", "stopped on request; the same command resumes");
  }
  result.command = command_of(o);
  const Json report = train::report_json(study, result);
  write_file_atomically(out / "report.json", report.dump(2) + "\n");
  write_file_atomically(out / "report.html", train::report_page(study, result));
  if (o.json)
    print_json(report);
  else
    fmt::print("{}", train::report_text(study, result));
  fmt::print(stderr, "{}\n", (out / "report.html").string());
  return report["fair"].get<bool>() ? kExitOk : kExitCheckNotMet;
}

}  // namespace compare_verb

std::function<int()> add_compare(CLI::App& app) {
  auto o = std::make_shared<compare_verb::CompareArgs>();
  group(app, "Study");
  app.add_option("files", o->files,
                 "study (JSON); or recipes to compare, and specs that the first recipe trains")
      ->required();
  add_out(app, o->out,
          "folder for the runs, report.json and report.html; the same command resumes an "
          "interrupted comparison");
  add_force(app, o->force);
  app.add_flag("--dry-run", o->dry_run,
               "print the models, their sizes and the minutes of all runs on this machine; train "
               "nothing but a few timed steps");
  app.add_option("--reference", o->reference,
                 "entry that the others are compared with; default: the first");
  group(app, "Equal size");
  app.add_option("--equal", o->equal,
                 "what all models have the same amount of: parameters (default; without token "
                 "table and head), flops, state_bytes, none");
  app.add_option(
      "--key", o->key,
      "integer of the spec that is solved for, in all layers (default d_hidden), such as "
      "ffn.d_hidden");
  app.add_option("--multiple-of", o->multiple, "the integer is a multiple of this (default 8)")
      ->check(positive());
  app.add_option("--tolerance", o->tolerance,
                 "largest relative distance from the amount (default 0.01)")
      ->check(fraction());
  group(app, "Budget");
  app.add_option("--tokens", o->tokens,
                 "training tokens of every run, such as 2M; default: the steps of the recipe");
  app.add_option("--steps", o->steps, "training steps of every run")->check(positive());
  app.add_option("--flops", o->flops,
                 "training FLOPs of every run, forward and backward, such as 1e15");
  group(app, "Learning rates and seeds");
  app.add_option("--learning-rates", o->rates,
                 "tune (default): a search for every model, 2.5 budgets each; shared: the rate of "
                 "the recipe; or rates to try, such as 1e-3,2e-3,4e-3");
  app.add_option("--seeds", o->seeds, "runs per model, with train.seed 1 to N (default 3)")
      ->check(CLI::Range(1, 1000));
  group(app, "Evaluation and output");
  app.add_flag("--decode", o->decode, "measure decoding speed, tokens/s");
  app.add_flag("--json", o->json, "report as JSON");
  app.add_flag("--verbose,-v", o->verbose, "progress of every run");
  group(app, "Precision and performance");
  add_threads(app, o->threads);
  examples(app, {"tessera compare study.json --out study --dry-run",
                 "tessera compare recipe.json mamba2.json rwkv7.json --tokens 2M --out study",
                 "tessera compare a.json b.json --equal flops --key ffn.d_hidden --seeds 5 --out "
                 "study"});
  return [o] { return compare_verb::compare(*o); };
}

}  // namespace tessera::cli
