// What `convert` does with tensors.
#include <unistd.h>

#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/convert.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/infer/loading/adapter.h"
#include "tessera/train/experts/distill_experts.h"

namespace tessera::cli {
namespace {

convert::Checkpoint distil(convert::Checkpoint checkpoint, const DistillArgs& args) {
  const text::Tokenizer tokenizer =
      convert::find_tokenizer(args.tokenizer, static_cast<int32_t>(checkpoint.spec.vocab));
  const auto all = tokenizer.encode(read_text_input(args.text, &cancel_token()), {});
  std::vector<int64_t> ids(all.begin(), all.end());
  if (std::ssize(ids) > args.tokens) ids.resize(static_cast<size_t>(args.tokens));
  const auto report = [](const train::DistilledLayer& line) {
    fmt::print(
        stderr,
        "tessera: {}: relative error {:.4f} on {} held-out tokens, {:.4f} before distillation\n",
        line.mixture, line.after, line.held_out, line.before);
  };
  return train::distilled_experts(
      checkpoint, args.use, ids,
      {.steps = args.steps, .seed = args.seed, .cancel = &cancel_token()}, report);
}

}  // namespace

std::function<int()> add_distilling_convert(CLI::App& app) {
  return add_convert(app, {distil, infer::with_merged_adapter, infer::without_merged_adapter,
                           infer::export_adapter});
}

}  // namespace tessera::cli
