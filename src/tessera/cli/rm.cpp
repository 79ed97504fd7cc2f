#include <iostream>

#include <unistd.h>

#include "tessera/cli/cli.h"
#include "tessera/format/file_source.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/listing.h"

namespace tessera::cli {
namespace {

struct RmArgs {
  std::string name;
  bool yes = false;
};

int rm(const RmArgs& o) {
  const auto name = hub::parse_model_name(o.name);
  if (!name || !name->selection.empty())
    fail(ErrorKind::usage, "rm", "{}: expected ORG/NAME or ORG/NAME@REVISION, a model of the cache",
         format::in_quotes(o.name));
  const bool whole = o.name.find('@') == std::string::npos;
  const auto cache = hub::cache_folder();
  const hub::Removed what = hub::removable(cache, *name, whole);
  if (!o.yes) {
    if (isatty(STDIN_FILENO) == 0)
      fail(ErrorKind::usage, "rm", "{}: {} files, {}; expected --yes where standard input is no terminal",
           o.name, what.files, hub::readable_bytes(what.bytes));
    fmt::print(stderr, "remove {} from {}: {} files, {}? [y/N] ", o.name, cache.string(),
               what.files, hub::readable_bytes(what.bytes));
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "Y" && answer != "yes")
      fail(ErrorKind::cancelled, "rm", "nothing was removed");
  }
  const hub::Removed gone = hub::remove_model(cache, *name, whole);
  fmt::print("{}: {} files, {} removed\n", o.name, gone.files, hub::readable_bytes(gone.bytes));
  return kExitOk;
}

}  // namespace

std::function<int()> add_rm(CLI::App& app) {
  auto o = std::make_shared<RmArgs>();
  group(app, "Model");
  app.add_option("name", o->name,
                 "ORG/NAME of a model in the cache; with @REVISION that revision alone, and the "
                 "files that no other one has")
      ->required();
  app.add_flag("--yes,-y", o->yes, "do not ask");
  examples(app, {"tessera rm org/name", "tessera rm org/name@v1.0 --yes"});
  return [o] { return rm(*o); };
}

}  // namespace tessera::cli
