// tessera: verbs that need no tensors run here; the others in tessera-tensors beside this program.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>

#include <unistd.h>

#include "tessera/cli/cli.h"
#include "tessera/cli/convert.h"
#include "tessera/cli/quantize.h"
#include "tessera/cli/tensor_verbs.h"

namespace {

bool needs_tensors(std::span<char*> args) {
  using namespace tessera::cli;
  if (args.size() < 2) return false;
  const std::string_view verb = args[1];
  if (std::any_of(std::begin(kTensorVerbs), std::end(kTensorVerbs),
                  [&](const VerbName& own) { return verb == own.name; }))
    return true;
  const auto asks_for = [&](std::span<const char* const> options) {
    return std::any_of(args.begin(), args.end(), [&](const char* arg) {
      // also as --option=value
      const std::string_view option =
          std::string_view(arg).substr(0, std::string_view(arg).find('='));
      return std::find(options.begin(), options.end(), option) != options.end();
    });
  };
  return (verb == "convert" && asks_for(kTensorOptions)) ||
         (verb == "quantize" && asks_for({&kImportance, 1}));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tessera::cli;
  if (needs_tensors({argv, static_cast<size_t>(argc)})) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    const std::string program = (self.parent_path() / "tessera-tensors").string();
    // On Intel's processors libtorch's MKL adds up in an order that turns on where its memory lies,
    // unless its environment says otherwise when it is loaded.
    if (__builtin_cpu_is("intel")) setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0);
    execv(program.c_str(), argv);
    fmt::print(stderr, "tessera: [install] {}: {}; build the target tessera-tensors\n", program,
               std::strerror(errno));
    return kExitFailed;
  }
  std::vector<Verb> elsewhere;
  for (const VerbName& verb : kTensorVerbs) elsewhere.push_back({verb.name, verb.summary, nullptr});
  return run(argc, argv, plain_verbs(), elsewhere);
}
