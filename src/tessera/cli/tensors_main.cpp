// tessera-tensors: the verbs that load libtorch.
#include <malloc.h>

#include <climits>

#include "tessera/base/cpu.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/tensor_verbs.h"

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::cli;
  // large buffers come back from the heap instead of being mapped and zeroed each time
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  try {
    if (const std::string cap = cap_onednn(); !cap.empty())
      fmt::print(stderr, "tessera: oneDNN is limited to {} on this processor\n", cap);
  } catch (const Error& error) {
    fmt::print(stderr, "tessera: {}\n", error.what());
    return kExitUsage;
  }
  constexpr std::function<int()> (*kAdd[])(CLI::App&) = {add_generate, add_forward, add_eval,
                                                         add_train,    add_bench,   add_doctor};
  std::vector<Verb> verbs;
  for (size_t i = 0; i < std::size(kAdd); ++i)
    verbs.push_back({kTensorVerbs[i].name, kTensorVerbs[i].summary, kAdd[i]});
  return run(argc, argv, verbs, {});
}
