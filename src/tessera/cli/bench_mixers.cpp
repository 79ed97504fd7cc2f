// tessera bench mixers: what one layer of every mixer, pattern and position costs as documents
// grow, and whether the growth that each mechanism claims holds.
#include <chrono>
#include <filesystem>
#include <set>

#include <fmt/ranges.h>
#include <unistd.h>

#include "tessera/analysis/cost_cases.h"
#include "tessera/analysis/cost_report.h"
#include "tessera/analysis/mixer_bench.h"
#include "tessera/base/cpu.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"

namespace tessera::cli {
namespace {

using analysis::Pass;

struct BenchMixersArgs {
  analysis::MixerBenchOptions bench;
  std::vector<std::string> only;
  std::string from, csv, svg, out;
  bool forward_only = false, backward_only = false, json = false;
  double memory_gigabytes = 4;
  int threads = 0;
};

/// The command that measures the same again.
std::string command_of(const BenchMixersArgs& o) {
  std::string command = fmt::format(
      "tessera bench mixers --width {} --lengths {} --repeats {} --limit {:g} --threads {}",
      o.bench.width, fmt::join(o.bench.lengths, ","), o.bench.repeats, o.bench.limit,
      thread_count());
  if (o.bench.document > 0) command += fmt::format(" --documents {}", o.bench.document);
  if (!o.only.empty()) command += fmt::format(" --only {}", fmt::join(o.only, ","));
  if (o.forward_only) command += " --forward";
  if (o.backward_only) command += " --backward";
  return command;
}

/// One line that changes on a terminal, else one for each mechanism.
class MixerProgress {
 public:
  MixerProgress(size_t total, std::string_view suffix) : total_(total), suffix_(suffix) {}
  ~MixerProgress() {
    if (terminal_) fmt::print(stderr, "\r{:<100}\r", "");
  }
  void next() { ++done_; }
  void say(const std::string& what) {
    if (terminal_)
      fmt::print(stderr, "\r{:<100}", fmt::format("{}/{}{} {}", done_, total_, suffix_, what));
    else if (said_ != done_)
      fmt::print(stderr, "{}/{}{} {}\n", done_, total_, suffix_, what.substr(0, what.find(' ')));
    said_ = done_;
    std::fflush(stderr);
  }

 private:
  size_t total_, done_ = 0, said_ = 0;
  std::string_view suffix_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
};

void measure_all(const std::vector<const spec::Mechanism*>& mechanisms,
                 analysis::MixerBenchOptions options,
                 analysis::CostRun& run) {
  MixerProgress progress(mechanisms.size(), "");
  options.progress = [&](const std::string& what) { progress.say(what); };
  for (const spec::Mechanism* mechanism : mechanisms) {
    progress.next();
    run.costs.push_back(analysis::measure_cost(*mechanism, options));
  }
}

/// Once all others are done: noise of a shared machine lasts longer than one mechanism takes.
void measure_failed_again(analysis::MixerBenchOptions options, analysis::CostRun& run) {
  std::vector<analysis::Cost*> failed;
  for (analysis::Cost& cost : run.costs)
    if (!analysis::timing_holds(cost, run.fit_from)) failed.push_back(&cost);
  MixerProgress progress(failed.size(), " again:");
  options.progress = [&](const std::string& what) { progress.say(what); };
  for (analysis::Cost* cost : failed) {
    progress.next();
    analysis::measure_again(*cost, options);
  }
}

analysis::CostRun measure_mixers(BenchMixersArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const std::set<int64_t> ascending(o.bench.lengths.begin(), o.bench.lengths.end());
  o.bench.lengths.assign(ascending.begin(), ascending.end());
  o.bench.forward = !o.backward_only;
  o.bench.backward = !o.forward_only;
  o.bench.memory_limit = static_cast<int64_t>(o.memory_gigabytes * (1 << 30));
  o.bench.cancel = &cancel_token();
  analysis::CostRun run;
  run.command = command_of(o);
  run.cpu = cpu_info().model;
  run.target = name_of(cpu_info().allowed);
  run.threads = thread_count();
  run.repeats = o.bench.repeats;
  run.width = o.bench.width;
  run.fit_from = o.bench.fit_from;
  measure_all(analysis::cost_mechanisms(o.only), o.bench, run);
  measure_failed_again(o.bench, run);
  return run;
}

bool has(const analysis::CostRun& run, Pass pass) {
  return std::any_of(run.costs.begin(), run.costs.end(),
                     [pass](const analysis::Cost& cost) { return cost.curve(pass) != nullptr; });
}

/// cost.md, cost.csv, cost.json, and a plot of time and one of memory for each pass.
void write_all(const analysis::CostRun& run, const std::filesystem::path& folder) {
  create_folder(folder);
  const auto write = [&](const std::string& name, const std::string& content) {
    write_file_atomically(folder / name, content);
    fmt::print(stderr, "{}\n", (folder / name).string());
  };
  std::vector<std::pair<std::string, std::string>> plots;
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (const bool memory : {false, true}) {
      if (!has(run, pass)) continue;
      const char* what = memory ? "memory" : "time";
      plots.emplace_back(fmt::format("cost_{}_{}.svg", name_of(pass), what),
                         fmt::format("{} of the {} pass", what, name_of(pass)));
      write(plots.back().first, analysis::cost_svg(run, pass, memory));
    }
  write("cost.md", analysis::cost_markdown(run, plots));
  write("cost.csv", analysis::cost_csv(run));
  write("cost.json", analysis::to_json(run).dump(1) + "\n");
}

int bench_mixers(BenchMixersArgs& o) {
  const analysis::CostRun run =
      o.from.empty() ? measure_mixers(o)
                     : analysis::cost_run_from_json(spec::read_json_file(o.from), o.from);
  // before the files: one that cannot be written must not take the measurement with it
  if (o.json)
    print_json(analysis::to_json(run));
  else
    fmt::print("{}", analysis::cost_text(run));
  flush_output();
  if (!o.csv.empty()) write_file_atomically(o.csv, analysis::cost_csv(run));
  if (!o.svg.empty())
    write_file_atomically(
        o.svg, analysis::cost_svg(run, has(run, Pass::forward) ? Pass::forward : Pass::backward));
  if (!o.out.empty()) write_all(run, o.out);
  const auto failed = analysis::failures(run);
  if (failed.empty()) return kExitOk;
  fmt::print(stderr, "tessera: {} claims do not hold; the first: {}\n", failed.size(), failed[0]);
  return kExitCheckNotMet;
}

}  // namespace

std::function<int()> add_bench_mixers(CLI::App& app) {
  auto o = std::make_shared<BenchMixersArgs>();
  group(app, "Workload");
  app.add_option("--only", o->only, "mechanisms to measure, comma-separated: mamba2,pattern/window")
      ->delimiter(',');
  app.add_option("--lengths", o->bench.lengths, "document lengths in tokens, comma-separated")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--documents", o->bench.document,
                 "tokens per document: --lengths are then batches of such documents, so that every "
                 "mechanism is linear")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--width", o->bench.width, "d_model; heads are 64 wide")
      ->capture_default_str()
      ->check(CLI::Range(16, 1 << 14));
  CLI::Option* forward =
      app.add_flag("--forward", o->forward_only, "inference only: forward pass and decoding");
  app.add_flag("--backward", o->backward_only, "training only: forward and backward pass")
      ->excludes(forward);
  app.add_option("--repeats", o->bench.repeats, "repetitions (median)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--fit-from", o->bench.fit_from, "shortest length used in the fit")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  group(app, "Limits");
  app.add_option("--limit", o->bench.limit,
                 "maximum seconds per call; longer documents are skipped")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--memory", o->memory_gigabytes,
                 "maximum GB per call; longer documents are skipped")
      ->capture_default_str()
      ->check(positive());
  group(app, "Precision and performance");
  add_threads(app, o->threads);
  group(app, "Output");
  app.add_flag("--json", o->json, "all results as JSON");
  app.add_option("--csv", o->csv, "write all points to this CSV file");
  app.add_option("--svg", o->svg, "write a plot of time against length to this SVG file");
  add_out(app, o->out, "folder for page, plots, CSV and JSON");
  app.add_option("--from", o->from,
                 "report from a file that --json or --out wrote; measure nothing");
  examples(app, {"tessera bench mixers --out docs/mechanisms",
                 "tessera bench mixers --only attention,window,mamba2 --svg cost.svg",
                 "tessera bench mixers --documents 64",
                 "tessera bench mixers --from docs/mechanisms/cost.json"});
  return [o] { return bench_mixers(*o); };
}

}  // namespace tessera::cli
