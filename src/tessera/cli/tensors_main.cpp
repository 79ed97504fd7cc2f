// tessera-tensors: the verbs that load libtorch.
#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/tensor_verbs.h"
#include "tessera/ops/block_cache.h"

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::cli;
  keep_freed_memory();
  ops::use_block_cache();
  try {
    if (const std::string cap = cap_onednn(); !cap.empty())
      fmt::print(stderr, "tessera: oneDNN is limited to {} on this processor\n", cap);
  } catch (const Error& error) {
    fmt::print(stderr, "tessera: {}\n", error.what());
    return kExitUsage;
  }
  constexpr std::function<int()> (*kAdd[])(CLI::App&) = {
      add_generate, add_chat,     add_serve, add_forward,  add_embed, add_index,  add_search,
      add_eval,     add_classify, add_train, add_finetune, add_bench, add_verify, add_doctor};
  std::vector<Verb> verbs;
  for (size_t i = 0; i < std::size(kAdd); ++i)
    verbs.push_back({kTensorVerbs[i].name, kTensorVerbs[i].summary, kAdd[i]});
  verbs.push_back({"convert", "Experts into dense layers by a text", add_distilling_convert});
  verbs.push_back({"quantize", "Fewer bits, by the importance of columns", add_measuring_quantize});
  return run(argc, argv, verbs, {});
}
