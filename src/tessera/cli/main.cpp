// tessera: verbs that need no tensors run here; the others in tessera-tensors beside this program.
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "tessera/cli/cli.h"
#include "tessera/cli/tensor_verbs.h"

int main(int argc, char** argv) {
  using namespace tessera::cli;
  if (argc > 1)
    for (const VerbName& verb : kTensorVerbs)
      if (std::strcmp(argv[1], verb.name) == 0) {
        std::error_code error;
        const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
        const std::string program = (self.parent_path() / "tessera-tensors").string();
        execv(program.c_str(), argv);
        fmt::print(stderr, "tessera: [install] {}: {}; build the target tessera-tensors\n", program,
                   std::strerror(errno));
        return kExitFailed;
      }
  std::vector<Verb> elsewhere;
  for (const VerbName& verb : kTensorVerbs) elsewhere.push_back({verb.name, verb.summary, nullptr});
  return run(argc, argv, plain_verbs(), elsewhere);
}
