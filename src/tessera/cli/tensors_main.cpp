// tessera-tensors: the verbs that load libtorch, and the others, which `docs` writes of.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/nn/plugins.h"
#include "tessera/ops/block_cache.h"

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::cli;
  keep_freed_memory();
  ops::use_block_cache();
  at::set_num_threads(thread_count());  // libtorch knows no container's quota
  try {
    if (const std::string cap = cap_onednn(); !cap.empty())
      fmt::print(stderr, "tessera: oneDNN is limited to {} on this processor\n", cap);
  } catch (const Error& error) {
    fmt::print(stderr, "tessera: {}\n", error.what());
    return kExitUsage;
  }
  const std::vector<Verb> verbs = {
#define TESSERA_PLAIN_VERB(name, typed, group, summary) {typed, group, summary, add_##name},
#define TESSERA_TENSOR_VERB(name, typed, group, summary) {typed, group, summary, add_##name},
#define TESSERA_SPLIT_VERB(name, typed, group, summary, add) {typed, group, summary, add},
#include "tessera/cli/verbs.def"
  };
  const int code = run({argv, argv + argc}, verbs, nn::load_plugin);
  // what is written is flushed, what was opened is closed; libtorch would take 75 ms more to remove
  // its operators one by one
  std::fflush(nullptr);
  std::_Exit(code);
}
