#include "tessera/infer/evaluate.h"

#include <chrono>
#include <cmath>

#include <unistd.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/infer/load_model.h"

namespace tessera::cli {
namespace {

struct Options {
  std::string model, text, families;
  infer::EvalOptions eval;
  bool json = false, no_special = false;
  int threads = 0;
};

int evaluate(Options& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const infer::LoadedModel loaded = infer::load_model(o.model, {o.families});
  if (!loaded.tokenizer) fail(ErrorKind::usage, "eval", "{} has no tokenizer", o.model);
  const std::string text = read_text_file(o.text);
  const auto ids = loaded.tokenizer->encode(text, {.add_special = !o.no_special});
  o.eval.cancel = &cancel_token();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  o.eval.progress = [&](int64_t done, int64_t total) {
    if (terminal) fmt::print(stderr, "\r{} of {} tokens", done, total);
  };
  if (const int64_t limit = loaded.model.spec().max_positions(); limit > 0)
    o.eval.window = std::min(o.eval.window, limit);
  const auto start = std::chrono::steady_clock::now();
  const infer::EvalResult result = infer::evaluate(loaded.model, {ids.begin(), ids.end()}, o.eval);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (terminal) fmt::print(stderr, "\r");
  // bytes that the targets stand for
  const std::vector<int32_t> scored(ids.begin() + 1, ids.begin() + 1 + result.targets);
  const double bytes = static_cast<double>(loaded.tokenizer->decode(scored, false).size());
  const double bits_per_byte =
      result.nll * static_cast<double>(result.targets) / std::log(2.0) / std::max(bytes, 1.0);
  const double speed = static_cast<double>(result.targets) / seconds;
  if (o.json) {
    print_json({{"nll", result.nll},
                {"perplexity", std::exp(result.nll)},
                {"bits_per_byte", bits_per_byte},
                {"tokens", result.targets},
                {"window", o.eval.window},
                {"stride", o.eval.carry        ? o.eval.window
                           : o.eval.stride > 0 ? o.eval.stride
                                               : o.eval.window - 1},
                {"carried", o.eval.carry},
                {"tokens_per_s", speed}});
  } else {
    fmt::print(
        "nll {:.6f} nats a token, perplexity {:.4f}, {:.4f} bits a byte; {} tokens, window {}, "
        "{:.1f} tokens/s\n",
        result.nll, std::exp(result.nll), bits_per_byte, result.targets, o.eval.window, speed);
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("model", o->model, "a tessera or Hugging Face folder, or a GGUF file")->required();
  app.add_option("--text", o->text, "the text file")->required();
  app.add_option("--window", o->eval.window, "tokens per forward pass")->capture_default_str();
  app.add_option("--stride", o->eval.stride, "new tokens per window; 0 = no overlap")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--carry", o->eval.carry,
               "every window goes on from the state of the one before, as a memory over segments "
               "or a recurrent model can");
  app.add_option("--max-tokens", o->eval.max_tokens, "only the first tokens of the text; 0 = all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--no-special", o->no_special, "add nothing around the text (no begin-of-text)");
  app.add_flag("--json", o->json,
               "nll, perplexity, bits_per_byte, tokens, window and stride as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_option("--families", o->families, "a folder of further family files");
  examples(app, {"tessera eval model.gguf --text wiki.txt --window 2000 --max-tokens 2000 --json"});
  return [o] { return evaluate(*o); };
}

}  // namespace tessera::cli
