#include "tessera/infer/evaluation/evaluate.h"

#include <chrono>
#include <cmath>

#include <unistd.h>

#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/eval_data.h"
#include "tessera/cli/eval_task.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"
#include "tessera/infer/evaluation/ngram.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/text/corpus_scores.h"

namespace tessera::cli {
namespace {

struct EvalArgs {
  LoadFlags loading;
  std::string model, text, train;
  std::vector<std::string> adapters;
  infer::EvalOptions eval;
  EvalData data;
  EvalTask task;
  KvFlags kv;
  ProductFlags products;
  DeviceFlag device;
  int ngram = 0;
  double train_fraction = 0;
  bool json = false, no_special = false;
  int threads = 0;
};

/// What was measured, for either kind of model.
struct Report {
  double nll = 0;  // nats per target
  int64_t targets = 0, bytes = 0, words = 0, window = 0, stride = 0;
  double seconds = 0;
  int64_t state_bytes = 0;  // that a row keeps at most
};

/// JSON has no infinities.
Json finite_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Where the part to measure begins: a byte that no character straddles.
size_t border(const std::string& text, double fraction) {
  auto at = static_cast<size_t>(std::floor(fraction * static_cast<double>(text.size())));
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

Report evaluate_ngram(const EvalArgs& o) {
  if (o.text == "-" && o.train == "-")
    fail(ErrorKind::usage, "eval",
         "standard input is given for --text and --train; expected it for one of them");
  const std::string text = read_text_input(o.text, &cancel_token());
  const std::string other = o.train.empty() ? "" : read_text_input(o.train, &cancel_token());
  if (o.train.empty() && !(o.train_fraction > 0 && o.train_fraction < 1))
    fail(ErrorKind::usage, "eval",
         "an n-gram model needs training text: --train FILE, or --train-fraction between 0 and 1, "
         "the first part of --text");
  const size_t begin = border(text, o.train_fraction);
  size_t end = text.size();
  if (o.eval.max_tokens > 0) end = std::min(end, begin + static_cast<size_t>(o.eval.max_tokens));
  if (begin == end)
    fail(ErrorKind::input, "eval",
         "{}: no evaluation text left of {} bytes; expected some after the training part", o.text,
         text.size());
  const infer::NgramModel model(
      o.train.empty() ? std::string_view(text).substr(0, begin) : std::string_view(other), o.ngram);
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.targets = report.bytes = static_cast<int64_t>(end - begin);
  report.words = text::count_words(std::string_view(text).substr(begin, end - begin));
  report.nll = model.nll_sum(std::string_view(text).substr(0, end), begin, &cancel_token()) /
               static_cast<double>(report.targets);
  report.window = o.ngram;
  report.stride = 1;
  report.seconds = seconds_since(start);
  return report;
}

/// What a row keeps at the end of a window, or of all of the text if windows carry the state.
int64_t state_bytes_of(const model::ModelSpec& spec, const EvalArgs& o, int64_t tokens) {
  if (!spec.no_state_reason().empty()) return 0;
  if (o.eval.max_tokens > 0) tokens = std::min(tokens, o.eval.max_tokens);
  const int64_t length = o.eval.carry ? tokens : std::min(tokens, o.eval.window);
  int64_t bytes = 0;
  for (const model::BranchState& branch : model::state_layout(spec, o.eval.kv.type))
    bytes += spec::state_bytes(branch.tensors, length);
  return bytes;
}

infer::LoadedModel load(EvalArgs& o) {
  infer::LoadedModel loaded = o.device.loaded([&] {
    return infer::load_model(o.model, o.kv.loading(o.loading), o.adapters, o.products.products());
  });
  say_differences(loaded.source);
  o.products.check(loaded.model);
  o.kv.check(loaded.model, o.products);
  return loaded;
}

int evaluate_on_task(EvalArgs& o) {
  o.task.check();
  const bool reads_text = o.task.reads_text();
  if (reads_text ? o.text.empty() : !o.text.empty() && !o.task.reads_haystack())
    fail(ErrorKind::usage, "eval", "--task {} {}", o.data.how.data.task,
         reads_text ? "evaluates a text; expected --text FILE"
                    : "has its own examples; expected no --text");
  const infer::LoadedModel loaded = load(o);
  o.task.model = o.model;
  o.task.adapters = o.adapters;
  o.task.data = o.data.how.data;
  if (o.task.reads_haystack() && !o.text.empty())
    o.task.haystack = read_text_input(o.text, &cancel_token());
  o.task.options.kv = o.kv.options();
  std::vector<int64_t> ids;
  if (reads_text) {
    if (!loaded.tokenizer) fail(ErrorKind::usage, "eval", "{} has no tokenizer", o.model);
    const auto encoded = loaded.tokenizer->encode(read_text_input(o.text, &cancel_token()),
                                                  {.add_special = !o.no_special});
    ids.assign(encoded.begin(), encoded.end());
    if (o.eval.max_tokens > 0 && std::ssize(ids) > o.eval.max_tokens)
      ids.resize(static_cast<size_t>(o.eval.max_tokens));
  }
  return evaluate_task(o.task, loaded, ids, o.json);
}

Report evaluate_model(EvalArgs& o) {
  const infer::LoadedModel loaded = load(o);
  if (!loaded.tokenizer) fail(ErrorKind::usage, "eval", "{} has no tokenizer", o.model);
  const std::string text = read_text_input(o.text, &cancel_token());
  const auto ids = loaded.tokenizer->encode(text.substr(border(text, o.train_fraction)),
                                            {.add_special = !o.no_special});
  if (ids.size() < 2)
    fail(ErrorKind::input, "eval", "{}: {} tokens; expected a text of at least 2",
         o.text == "-" ? "standard input" : o.text, ids.size());
  o.eval.cancel = &cancel_token();
  o.eval.kv = o.kv.options();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  o.eval.progress = [&](int64_t done, int64_t total) {
    if (terminal) fmt::print(stderr, "\r{} of {} tokens", done, total);
  };
  if (const int64_t limit = loaded.model.spec().max_positions(); limit > 0)
    o.eval.window = std::min(o.eval.window, limit);
  const auto start = std::chrono::steady_clock::now();
  const infer::EvalResult result = infer::evaluate(loaded.model, {ids.begin(), ids.end()}, o.eval);
  const double seconds = seconds_since(start);
  if (terminal) fmt::print(stderr, "\r");
  // bytes and words that the targets stand for
  const std::vector<int32_t> scored(result.target_ids.begin(), result.target_ids.end());
  const std::string scored_text = loaded.tokenizer->decode(scored, false);
  return {.nll = result.nll,
          .targets = result.targets,
          .bytes = std::ssize(scored_text),
          .words = text::count_words(scored_text),
          .window = o.eval.window,
          .stride = o.eval.carry        ? o.eval.window
                    : o.eval.stride > 0 ? o.eval.stride
                                        : o.eval.window - 1,
          .seconds = seconds,
          .state_bytes = state_bytes_of(loaded.model.spec(), o, std::ssize(ids))};
}

int evaluate(EvalArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (o.data.given() && !o.task.is_benchmark() && !o.task.asks_questions()) {
    o.data.how.device =
        o.device.device([&] { return device_bytes_of(o.model, o.loading.options()); });
    o.data.how.seed = o.task.options.seed;
    o.data.how.out = o.task.out();
    o.data.how.data.model = o.model;
    o.data.how.adapters = o.adapters;
    o.data.how.loading = o.loading.options();
    return evaluate_data(o.data, o.json);
  }
  if (o.task.given()) return evaluate_on_task(o);
  if (o.ngram > 0) note_cpu("eval --ngram");
  const Report report = o.ngram > 0 ? evaluate_ngram(o) : evaluate_model(o);
  if (!std::isfinite(report.nll))
    fail(ErrorKind::input, "eval",
         "the loss is not a finite number, since some logits are not; expected a model with finite "
         "weights");
  const auto targets = static_cast<double>(report.targets);
  const double bits_per_byte = report.nll * targets / std::log(2.0) /
                               static_cast<double>(std::max<int64_t>(report.bytes, 1));
  const double byte_perplexity = std::exp2(bits_per_byte);
  const double word_perplexity = std::exp(report.nll * targets / static_cast<double>(report.words));
  const double speed = targets / report.seconds;
  if (o.json) {
    print_json({{"nll", report.nll},
                {"perplexity", std::exp(report.nll)},
                {"bits_per_byte", bits_per_byte},
                {"byte_perplexity", byte_perplexity},
                {"word_perplexity", finite_or_null(word_perplexity)},
                {"tokens", report.targets},
                {"window", report.window},
                {"stride", report.stride},
                {"carried", o.eval.carry},
                {"kv_type", o.kv.type},
                {"state_bytes", report.state_bytes},
                {"tokens_per_s", speed}});
  } else {
    fmt::print(
        "nll {:.6f} nats per token, perplexity {:.4f}, {:.4f} bits per byte; {} tokens, window {}, "
        "{:.1f} tokens/s\n",
        report.nll, std::exp(report.nll), bits_per_byte, report.targets, report.window, speed);
    fmt::print("byte perplexity {:.4f}, word perplexity {:.4f}\n", byte_perplexity,
               word_perplexity);
    if (report.state_bytes > 0)
      fmt::print("KV cache {:.2f} MiB per sequence ({})\n",
                 static_cast<double>(report.state_bytes) / (1 << 20), o.kv.type);
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_eval(CLI::App& app) {
  auto o = std::make_shared<EvalArgs>();
  group(app, "Input");
  auto* model = add_model(app, o->model)->required(false);
  auto* text = app.add_option("--text,-f,--file", o->text, "evaluation text; - = standard input");
  app.add_option("--max-tokens", o->eval.max_tokens, "first N tokens only; 0 = all")
      ->capture_default_str()
      ->check(not_negative());
  auto* special = app.add_flag("--no-special", o->no_special, "do not add special tokens (BOS)");
  app.add_flag("--json", o->json,
               "results as JSON: nll, perplexity, bits_per_byte and others, or scores");
  auto* adapter = add_adapters(app, o->adapters);
  o->loading.add(app);
  o->data.add(app);
  o->task.add(app, o->data.how.data.task);
  text->excludes(app.get_option("--data"));
  group(app, "Windows");
  auto* window = app.add_option("--window,-c,--ctx-size", o->eval.window, "tokens per window")
                     ->capture_default_str();
  auto* stride = app.add_option("--stride", o->eval.stride,
                                "new tokens per window (strided evaluation); 0 = no overlap")
                     ->capture_default_str()
                     ->check(not_negative());
  auto* carry =
      app.add_flag("--carry", o->eval.carry, "carry the state (KV cache) between windows");
  group(app, "KV cache");
  o->kv.add(app);
  group(app, "n-gram baseline");
  auto* ngram = app.add_option("--ngram", o->ngram,
                               "baseline instead of a model: byte n-gram model (Kneser-Ney) of "
                               "this order")
                    ->check(CLI::Range(1, infer::NgramModel::kMaxOrder));
  app.add_option("--train", o->train,
                 "its training text; - = standard input; without it, --train-fraction")
      ->needs(ngram);
  app.add_option("--train-fraction", o->train_fraction,
                 "leading fraction of the text (bytes) used for training, not evaluated")
      ->capture_default_str()
      ->check(fraction());
  group(app, "Precision and performance");
  o->products.add(app);
  auto* device = o->device.add(app);
  add_threads(app, o->threads);
  for (CLI::Option* option : LoadFlags::of(app)) ngram->excludes(option);
  for (CLI::Option* option :
       {model, adapter, window, stride, carry, special, device, app.get_option("--kv-type"),
        app.get_option("--kv-page"), app.get_option("--keep-last"), app.get_option("--keep-first"),
        app.get_option("--keep-heavy"), app.get_option("--exact"), app.get_option("--fast"),
        app.get_option("--blocks"), app.get_option("--data"), app.get_option("--task")})
    ngram->excludes(option);
  examples(app,
           {"tessera eval model.gguf --text wiki.txt --window 2000 --max-tokens 2000 --json",
            "tessera eval run --data test.tsv --label-key mood",
            "tessera eval model.gguf --task arc.jsonl --few-shot 5 --out arc.results.jsonl",
            "tessera eval model.gguf --task hellaswag --data hellaswag_val.jsonl",
            "tessera eval run --data dev_matched.tsv --task glue:mnli",
            "tessera eval model.gguf --task passkey --lengths 512,1024",
            "tessera eval model.gguf --task niah_multiquery --lengths 4096 --depths 0,0.5,1",
            "tessera eval model.gguf --text wiki.txt --kv-type int4",
            "tessera eval model.gguf --text wiki.txt --keep-last 256 --carry",
            "tessera eval --ngram 5 --text examples/data/shakespeare.txt --train-fraction 0.9"});
  return [o, model, ngram] {
    if (model->empty() && ngram->empty())
      fail(ErrorKind::usage, "eval", "nothing to evaluate; expected a MODEL or --ngram");
    if (o->text.empty() && !o->data.given() && !o->task.given())
      fail(
          ErrorKind::usage, "eval",
          "no evaluation data; expected --text FILE, --data FILE with labelled examples, or --task "
          "NAME|FILE");
    return evaluate(*o);
  };
}

}  // namespace tessera::cli
