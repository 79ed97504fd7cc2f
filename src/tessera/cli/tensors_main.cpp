// tessera-tensors: the verbs that compute with tensors, and the others, which `docs` writes of.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/torch_calls.h"
#include "tessera/nn/plugins.h"
#include "tessera/ops/block_cache.h"

namespace {

/// Opens libtorch, or has it opened when it is called, for verbs that compute no gradients.
void prepare_torch(std::string_view verb) {
  constexpr std::string_view kInferring[] = {"generate", "chat",  "serve",
                                             "embed",    "index", "search"};
  if (std::find(std::begin(kInferring), std::end(kInferring), verb) != std::end(kInferring))
    tessera::cli::open_torch_when_called();
  else
    tessera::cli::open_torch();
}

/// A device without memory for a tensor.
std::string explain(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) == nullptr) return "";
  const std::string_view what = error.what();
  return fmt::format(
      "[device] {}; expected a smaller batch, context or model (`tessera plan` says what fits), "
      "--device auto or --device cpu",
      what.substr(0, what.find('\n')));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::cli;
  keep_freed_memory();
  ops::use_block_cache();
  try {
    if (const std::string cap = cap_onednn(); !cap.empty())
      fmt::print(stderr, "tessera: oneDNN is limited to {} on this processor\n", cap);
    prepare_torch(argc > 1 ? argv[1] : "");
  } catch (const Error& error) {
    fmt::print(stderr, "tessera: {}\n", error.what());
    return error.kind() == ErrorKind::usage ? kExitUsage : kExitFailed;
  }
  at::set_num_threads(thread_count());  // libtorch knows no container's quota
  const std::vector<Verb> verbs = {
#define TESSERA_PLAIN_VERB(name, typed, group, summary) {typed, group, summary, add_##name},
#define TESSERA_TENSOR_VERB(name, typed, group, summary) {typed, group, summary, add_##name},
#define TESSERA_SPLIT_VERB(name, typed, group, summary, add) {typed, group, summary, add},
#include "tessera/cli/verbs.def"
  };
  const int code = run({argv, argv + argc}, verbs, {nn::load_plugin, explain});
  // what is written is flushed, what was opened is closed; libtorch would take 75 ms more to remove
  // its operators one by one
  std::fflush(nullptr);
  std::_Exit(code);
}
