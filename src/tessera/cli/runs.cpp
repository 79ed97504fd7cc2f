#include <unistd.h>

#include <algorithm>

#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"
#include "tessera/train/runs/run_report.h"

namespace tessera::cli {
namespace {

struct RunsArgs {
  std::vector<std::string> folders;
  std::string html;
  bool json = false, watch = false, force = false;
};

constexpr int kEverySeconds = 2;

/// Whether it was not asked to stop meanwhile.
bool wait() {
  for (int i = 0; i < 10 * kEverySeconds; ++i) {
    if (cancel_token().requested()) return false;
    usleep(100'000);
  }
  return true;
}

int runs(const RunsArgs& o) {
  if (o.watch && o.json)
    fail(ErrorKind::usage, "runs", "--watch with --json; expected one of the two");
  check_out_place("runs", o.html, o.force, begins_with("<!doctype html>"));
  const std::vector<std::filesystem::path> folders(o.folders.begin(), o.folders.end());
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  while (true) {
    const auto all = train::read_runs(folders);
    const bool complete = std::all_of(all.begin(), all.end(), [](const train::RunRecord& run) {
      return run.state == train::RunStatus::complete;
    });
    const bool again = o.watch && !complete;
    if (!o.html.empty())
      write_file_atomically(o.html, train::page_of(all, again ? kEverySeconds : 0));
    if (o.json)
      print_json(train::json_of_runs(all));
    else
      fmt::print("{}{}", o.watch && terminal ? "\033[H\033[2J" : "", train::table_of(all));
    flush_output();
    if (again && wait()) continue;
    // the last page is to stay as it is
    if (again && !o.html.empty()) write_file_atomically(o.html, train::page_of(all));
    return kExitOk;
  }
}

}  // namespace

std::function<int()> add_runs(CLI::App& app) {
  auto o = std::make_shared<RunsArgs>();
  group(app, "Output");
  app.add_option("runs", o->folders, "run folders (train --out), or folders of them")->required();
  app.add_option(
      "--html", o->html,
      "write a web page: table, loss curves by step, token and second, differences of the recipes, "
      "all logged metrics");
  add_force(app, o->force);
  app.add_flag("--watch", o->watch,
               "refresh table and page every two seconds until all runs are complete, or Ctrl-C");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera runs out/a out/b", "tessera runs out --html runs.html --watch",
                 "tessera runs out --json"});
  return [o] { return runs(*o); };
}

}  // namespace tessera::cli
