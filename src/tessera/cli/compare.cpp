#include <charconv>
#include <filesystem>
#include <optional>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/temporary_folder.h"
#include "tessera/base/threads.h"
#include "tessera/cli/amount.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/train_progress.h"
#include "tessera/train/runs/sweep.h"
#include "tessera/train/study/self_check.h"
#include "tessera/train/study/study_run.h"

namespace tessera::cli {
namespace compare_verb {

namespace fs = std::filesystem;

struct CompareArgs {
  DeviceFlag device;
  std::vector<std::string> files;
  std::string out, equal, key, tokens, flops, rates, reference;
  std::optional<int64_t> steps, multiple, seeds;
  std::optional<double> tolerance;
  std::vector<std::string> scaling, over, checks;
  std::string mixers;
  std::optional<int64_t> candidates, finalists;
  bool self_check = false, decode = false, dry_run = false, json = false, verbose = false,
       force = false;
  int threads = 0;
};

/// "KEY=a,b,c".
std::pair<std::string, std::vector<std::string>> grid_of(const std::string& text) {
  const train::Sweep sweep = train::plan_sweep({text}, 1);
  return {sweep.keys.at(0), sweep.values.at(0)};
}

/// As --set reads it: JSON, or a string.
Json value_of(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_discarded() ? Json(text) : json;
}

/// Sizes of a scaling law: the first value of every key, the second of every key, ...
Json sizes_of(const std::vector<std::string>& grids) {
  Json sizes = Json::array();
  for (const std::string& grid : grids) {
    const auto [key, values] = grid_of(grid);
    if (sizes.empty()) sizes = Json(values.size(), Json::array());
    if (sizes.size() != values.size())
      fail(ErrorKind::usage, "compare",
           "--scaling {}: {} values, and the first key has {}; expected a value for every size",
           key, values.size(), sizes.size());
    for (size_t i = 0; i < values.size(); ++i)
      sizes[i].push_back(fmt::format("{}={}", key, values[i]));
  }
  return sizes;
}

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
  // null removes the study's own
  if (budgets == 1)
    changes["budget"] = {{"tokens", nullptr}, {"steps", nullptr}, {"flops", nullptr}};
  if (!o.tokens.empty()) set("budget", "tokens", amount_of("--tokens", o.tokens));
  if (!o.flops.empty()) set("budget", "flops", amount_of("--flops", o.flops));
  if (o.steps) set("budget", "steps", *o.steps);
  if (o.seeds) changes["seeds"] = *o.seeds;
  if (!o.reference.empty()) changes["reference"] = o.reference;
  if (o.decode) set("evaluate", "decode", true);
  if (!o.scaling.empty()) set("scaling", "sizes", sizes_of(o.scaling));
  if (!o.mixers.empty()) {
    Json mixers = Json::object();
    for (const std::string& mixer : grid_of("search=" + o.mixers).second)
      mixers[mixer] = value_of(mixer);
    set("search", "mixers", std::move(mixers));
  }
  for (const std::string& grid : o.over) {
    const auto [key, values] = grid_of(grid);
    Json list = Json::array();
    for (const std::string& value : values) list.push_back(value_of(value));
    changes["search"]["over"][key] = std::move(list);
  }
  if (o.candidates) set("search", "candidates", *o.candidates);
  if (o.finalists) set("search", "finalists", *o.finalists);
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
  for (const std::string& grid : o.scaling) add("--scaling", grid);
  add("--search", o.mixers);
  for (const std::string& grid : o.over) add("--over", grid);
  add("--candidates", number(o.candidates));
  add("--finalists", number(o.finalists));
  if (o.decode) text += " --decode";
  return text + " --out " + o.out;
}

bool is_study_folder(const fs::path& out) {
  return fs::exists(out / "study.json");
}

void print_findings(const train::Study& study,
                    const fs::path& cache,
                    const std::string& what = "") {
  for (const train::Finding& finding :
       train::findings_of(study, train::orders_of(study, cache, &cancel_token())))
    fmt::print(stderr, "tessera: {}{}{}\n", finding.unfair ? "unfair: " : "note: ", what,
               finding.text);
}

/// What was compared, with its result; nothing after --dry-run.
struct Compared {
  train::Study study;
  train::StudyResult result;
};

std::optional<Compared> run_plain(const CompareArgs& o,
                                  const train::StudyFile& file,
                                  const fs::path& out,
                                  const train::StudyOptions& options) {
  const train::Study study = train::read_study(file.json, file.folder);
  write_file_atomically(out / "study.json", train::to_json(study).dump(2) + "\n");
  fmt::print(stderr, "{}", train::plan_text(study, train::times_of(study, out, options)));
  print_findings(study, out / "cache");
  if (o.dry_run) return std::nullopt;
  return Compared{study, train::run_study(study, out, options)};
}

std::optional<Compared> run_scaling(const CompareArgs& o,
                                    const train::StudyFile& file,
                                    const fs::path& out,
                                    const train::StudyOptions& options) {
  const train::ScalingStudy scaling = train::read_scaling(file);
  Json written = {{"scaling", spec::dump_struct(scaling.how)}, {"sizes", Json::array()}};
  for (const train::Study& size : scaling.sizes) written["sizes"].push_back(train::to_json(size));
  write_file_atomically(out / "study.json", written.dump(2) + "\n");
  fmt::print(stderr, "{}", train::scaling_plan(scaling, out, options));
  for (size_t size = 0; size < scaling.sizes.size(); ++size)
    print_findings(scaling.sizes[size], out / "cache", fmt::format("size {}: ", size + 1));
  if (o.dry_run) return std::nullopt;
  return Compared{scaling.sizes.back(),
                  train::scaling_report(scaling, train::run_scaling(scaling, out, options))};
}

std::optional<Compared> run_search(const CompareArgs& o,
                                   const train::StudyFile& file,
                                   const fs::path& out,
                                   const train::StudyOptions& options) {
  const train::LayoutSearch search = train::read_search(file);
  write_file_atomically(out / "study.json", train::to_json(search.study).dump(2) + "\n");
  fmt::print(stderr, "{}", train::search_plan(search, out, options));
  print_findings(search.study, out / "cache");
  if (o.dry_run) return std::nullopt;
  train::SearchResult found = train::run_search(search, out, options);
  return Compared{std::move(found.study), std::move(found.result)};
}

int self_check(const CompareArgs& o) {
  if (!o.files.empty())
    fail(ErrorKind::usage, "compare", "--self-check has studies of its own; expected no file");
  std::optional<TemporaryFolder> temporary;
  const fs::path out = o.out.empty() ? temporary.emplace().path() : fs::path(o.out);
  create_folder(out);
  train::SelfCheckOptions options;
  options.study.cancel = &cancel_token();
  TrainProgress progress;
  if (o.verbose)
    options.study.on_step = [&](const train::LogLine& line, int64_t steps) {
      progress(line, steps);
    };
  options.steps = o.steps;
  options.only = o.checks;
  const auto say = [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
    std::fflush(stderr);
  };
  if (o.checks.empty() && !o.steps)
    say(fmt::format("self-check: {} checks, about {:.0f} s on 2 cores",
                    train::self_check_names().size(), train::self_check_seconds()));
  options.done = [&](const train::CheckLine& line) {
    fmt::print(o.json ? stderr : stdout, "{}  {}: {}  ({:.1f} s)\n", line.passed ? "pass" : "FAIL",
               line.name, line.found, line.seconds);
    if (!line.passed) say("      expected: " + line.claim);
    std::fflush(stdout);
  };
  std::vector<train::CheckLine> lines;
  try {
    lines = train::self_check(out, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    fail(ErrorKind::cancelled, "compare", "stopped on request");
  }
  Json json = {{"checks", Json::array()}};
  int64_t passed = 0;
  double seconds = 0;
  for (const train::CheckLine& line : lines) {
    json["checks"].push_back({{"name", line.name},
                              {"claim", line.claim},
                              {"found", line.found},
                              {"passed", line.passed},
                              {"seconds", line.seconds}});
    passed += line.passed ? 1 : 0;
    seconds += line.seconds;
  }
  const bool all = passed == std::ssize(lines);
  json["passed"] = all;
  if (o.json)
    print_json(json);
  else
    fmt::print("{} of {} checks passed in {:.0f} s\n", passed, lines.size(), seconds);
  return all ? kExitOk : kExitFailed;
}

int compare(const CompareArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const at::Device device = o.device.device();
  if (!o.out.empty()) check_out_place("compare", o.out, o.force, is_study_folder);
  if (o.self_check) return self_check(o);
  if (o.files.empty())
    fail(ErrorKind::usage, "compare",
         "no study; expected a study file, or recipes and specs to compare");
  if (o.out.empty() && !o.dry_run)
    fail(ErrorKind::usage, "compare", "--out is missing; expected a folder, or --dry-run");
  const train::StudyFile file = train::study_file({o.files.begin(), o.files.end()}, changes_of(o));
  const bool scales = file.json.contains("scaling"), searches = file.json.contains("search");
  if (scales && searches)
    fail(ErrorKind::usage, "compare",
         "a scaling law and a layout search; expected one of \"scaling\" and \"search\"");
  std::optional<TemporaryFolder> temporary;
  const fs::path out = o.out.empty() ? temporary.emplace().path() : fs::path(o.out);
  create_folder(out);
  train::StudyOptions options;
  options.cancel = &cancel_token();
  options.device = device;
  options.say = [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
    std::fflush(stderr);
  };
  TrainProgress progress;
  if (o.verbose)
    options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  std::optional<Compared> done;
  try {
    done = (scales ? run_scaling : searches ? run_search : run_plain)(o, file, out, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    fail(ErrorKind::cancelled, "compare", "stopped on request; the same command resumes");
  }
  if (!done) return kExitOk;
  done->result.command = command_of(o);
  const Json report = train::report_json(done->study, done->result);
  write_file_atomically(out / "report.json", report.dump(2) + "\n");
  write_file_atomically(out / "report.html", train::report_page(done->study, done->result));
  if (o.json)
    print_json(report);
  else
    fmt::print("{}", train::report_text(done->study, done->result));
  fmt::print(stderr, "{}\n", (out / "report.html").string());
  return report["fair"].get<bool>() ? kExitOk : kExitCheckNotMet;
}

}  // namespace compare_verb

std::function<int()> add_compare(CLI::App& app) {
  auto o = std::make_shared<compare_verb::CompareArgs>();
  group(app, "Study");
  app.add_option("files", o->files,
                 "study (JSON); or recipes to compare, and specs that the first recipe trains");
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
  group(app, "Scaling law");
  app.add_option("--scaling", o->scaling,
                 "KEY=a,b,c: sizes of every entry, three or more, such as "
                 "spec.d_model=32,48,64; repeat for keys that grow together. Fits a scaling law "
                 "and predicts the loss of the next size")
      ->allow_extra_args(false);
  group(app, "Layout search");
  app.add_option("--search", o->mixers,
                 "mixers, such as attention,gated_delta_net: searches which of them each layer "
                 "has, by successive halving, and compares the best layouts");
  app.add_option("--over", o->over,
                 "KEY=a,b: a further choice of the search, such as "
                 "spec.residual=pre_norm,sandwich; repeatable")
      ->allow_extra_args(false);
  app.add_option("--candidates", o->candidates,
                 "largest number of layouts to try (default 16), drawn at random from more")
      ->check(positive());
  app.add_option("--finalists", o->finalists, "layouts to compare after the search (default 2)")
      ->check(positive());
  group(app, "Self-check");
  app.add_flag("--self-check", o->self_check,
               "train known results of the literature in about 2 minutes, and plant unfairness "
               "that must be found; exit status 1 if a check fails");
  app.add_option("--check", o->checks, "run this check only; repeatable")->allow_extra_args(false);
  group(app, "Evaluation and output");
  app.add_flag("--decode", o->decode, "measure decoding speed, tokens/s");
  app.add_flag("--json", o->json, "report as JSON");
  app.add_flag("--verbose,-v", o->verbose, "progress of every run");
  group(app, "Precision and performance");
  o->device.add(app, /*takes_auto=*/false);
  o->device.excludes(app.get_option("--self-check"));
  add_threads(app, o->threads);
  examples(app, {"tessera compare study.json --out study --dry-run",
                 "tessera compare recipe.json mamba2.json rwkv7.json --tokens 2M --out study",
                 "tessera compare a.json b.json --equal flops --key ffn.d_hidden --seeds 5 --out "
                 "study",
                 "tessera compare recipe.json --search attention,mamba2 --out search",
                 "tessera compare recipe.json --scaling spec.d_model=32,48,64 --out scaling",
                 "tessera compare --self-check"});
  return [o] { return compare_verb::compare(*o); };
}

}  // namespace tessera::cli
