// tessera: verbs that need no tensors run here; the others in tessera-tensors, in the same folder.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "tessera/cli/cli.h"
#include "tessera/cli/convert.h"
#include "tessera/cli/families.h"
#include "tessera/cli/plan.h"
#include "tessera/cli/quantize.h"
#include "tessera/cli/typed.h"
#include "tessera/spec/plugin_files.h"

namespace {

constexpr const char* kPlugin = "--plugin";

bool needs_tensors(const std::vector<std::string>& args) {
  using namespace tessera::cli;
  if (args.size() < 2) return false;
  const std::string& verb = args[1];
  for (const Verb& known : plain_verbs())
    if (verb == known.name && known.add == nullptr) return true;
  const auto asks_for = [&](std::span<const char* const> options) {
    return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
      // also as --option=value
      return std::find(options.begin(), options.end(), option_name(arg)) != options.end();
    });
  };
  // plugins compute
  if (takes_plugins(verb) &&
      (asks_for({&kPlugin, 1}) || !tessera::spec::plugins_of_environment().empty()))
    return true;
  return (verb == "convert" && asks_for(kTensorOptions)) ||
         (verb == "plan" && asks_for(kFitOptions)) ||
         (verb == "families" && asks_for({&kProofText, 1})) ||
         (verb == "quantize" && asks_for({&kImportance, 1}));
}

/// The environment that libraries read when they are loaded; what the user has set stays.
void prepare_libraries() {
  // libtorch's MKL adds up in an order that turns on where its memory lies, by default.
  setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0);
  // GNU's OpenMP lets a thread that waits for others spin 300,000 times, 10 ms and more, before it
  // sleeps: on a machine with other work its core is then taken from the one that it waits for.
  // 0.07 ms bridge what lies between two loops of a step.
  constexpr const char* kSpins = "1000";
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", kSpins, /*overwrite=*/0);
  // The small allocations that libtorch begins with are tens of MB: 30 ms less in pages of 2 MB.
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", /*overwrite=*/0);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tessera::cli;
  // `tessera help VERB` is `tessera VERB --help`
  static char help[] = "--help";
  if (argc > 1 && std::strcmp(argv[1], "help") == 0) {
    if (argc > 2) argv[1] = argv[2];
    argv[argc > 2 ? 2 : 1] = help;
  }
  const std::vector<std::string> args(argv, argv + argc);
  if (needs_tensors(args)) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    const std::string program = (self.parent_path() / "tessera-tensors").string();
    prepare_libraries();
    execv(program.c_str(), argv);
    fmt::print(stderr, "tessera: [install] {}: {}; build the target tessera-tensors\n", program,
               std::strerror(errno));
    return kExitFailed;
  }
  return run(args, plain_verbs());
}
