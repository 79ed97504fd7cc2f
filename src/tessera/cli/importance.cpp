// What `quantize` does with tensors: the importance of columns, from a run over a text.
#include <algorithm>

#include <unistd.h>

#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/quantize.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/infer/evaluate.h"
#include "tessera/infer/load_model.h"
#include "tessera/ops/weights/input_squares.h"

namespace tessera::cli {
namespace {

/// Mean squares by column, of several matrices one after the other; empty where nothing multiplied
/// them. A matrix that met no row beside others that did counts all its columns alike.
std::vector<float> means_of(const ops::Weight& weight, const ops::InputSquares& squares) {
  const bool several = weight.shape().size() == 3;
  const int64_t matrices = several ? weight.size(0) : 1;
  const int64_t k = weight.shape().back();
  std::vector<float> means;
  bool any = false;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    const ops::InputSquares::Sums* sums =
        squares.of(several ? weight.slice(matrix).data() : weight.data());
    any = any || sums != nullptr;
    for (int64_t i = 0; i < k; ++i)
      means.push_back(sums == nullptr ? 1
                                      : static_cast<float>(sums->squares[static_cast<size_t>(i)] /
                                                           static_cast<double>(sums->rows)));
  }
  return any ? means : std::vector<float>();
}

MeasuredImportance importance_from_text(const ImportanceArgs& args) {
  const infer::LoadedModel loaded = infer::load_model(args.model, {args.families});
  say_differences(loaded.source);
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "quantize", "{} has no tokenizer, and --importance reads text",
         args.model);
  const auto ids =
      loaded.tokenizer->encode(read_text_input(args.text, &cancel_token()), {.add_special = true});
  infer::EvalOptions options;
  options.window = 512;
  options.max_tokens = args.tokens;
  options.cancel = &cancel_token();
  if (const int64_t limit = loaded.model.spec().max_positions(); limit > 0)
    options.window = std::min(options.window, limit);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  options.progress = [&](int64_t done, int64_t total) {
    if (terminal) fmt::print(stderr, "\rreading {} of {} tokens", done, total);
  };
  const ops::InputSquares squares;
  const infer::EvalResult result = infer::evaluate(loaded.model, {ids.begin(), ids.end()}, options);
  if (terminal) fmt::print(stderr, "\r\x1b[K");
  MeasuredImportance out;
  out.tokens = result.targets;
  for (const auto& [foreign, ours] : convert::gguf_names(loaded.source, {args.families, {}, {}}))
    for (const std::string& name : ours) {
      const auto means = means_of(*loaded.model.weights().asked(name), squares);
      if (means.empty()) continue;
      out.by_name.emplace(foreign, means);
      break;
    }
  if (out.by_name.empty())
    fail(ErrorKind::internal, "quantize", "no product of the model was seen");
  return out;
}

}  // namespace

std::function<int()> add_measuring_quantize(CLI::App& app) {
  return add_quantize(app, importance_from_text);
}

}  // namespace tessera::cli
