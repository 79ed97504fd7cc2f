#include <unistd.h>

#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/train/run_report.h"

namespace tessera::cli {
namespace {

struct RunsArgs {
  std::vector<std::string> folders;
  std::string html;
  bool json = false, watch = false;
};

constexpr int kEverySeconds = 2;

int runs(const RunsArgs& o) {
  if (o.watch && o.json)
    fail(ErrorKind::usage, "runs", "--watch with --json; expected one of the two");
  const std::vector<std::filesystem::path> folders(o.folders.begin(), o.folders.end());
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  while (true) {
    const auto all = train::read_runs(folders);
    if (!o.html.empty())
      write_file_atomically(o.html, train::page_of(all, o.watch ? kEverySeconds : 0));
    if (o.json)
      print_json(train::json_of_runs(all));
    else
      fmt::print("{}{}", o.watch && terminal ? "\033[H\033[2J" : "", train::table_of(all));
    std::fflush(stdout);
    if (!o.watch) return kExitOk;
    for (int i = 0; i < 10 * kEverySeconds; ++i) {
      if (cancel_token().requested()) break;
      usleep(100'000);
    }
    if (!cancel_token().requested()) continue;
    // the page stays as it is
    if (!o.html.empty()) write_file_atomically(o.html, train::page_of(all));
    return kExitOk;
  }
}

}  // namespace

std::function<int()> add_runs(CLI::App& app) {
  auto o = std::make_shared<RunsArgs>();
  app.add_option("runs", o->folders, "folders of runs (train --out)")->required();
  app.add_option("--html", o->html,
                 "writes a page with the table, losses by steps, tokens and seconds, and where "
                 "recipes differ");
  app.add_flag("--watch", o->watch,
               "anew every two seconds, table and page, until Ctrl-C; an open page follows");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera runs out/a out/b", "tessera runs out/* --html runs.html --watch"});
  return [o] { return runs(*o); };
}

}  // namespace tessera::cli
