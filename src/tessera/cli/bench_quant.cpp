// tessera bench quant: what types cost. Each is written as a GGUF file, read again, and compared
// with the model as it was, over the same text.
#include <chrono>
#include <filesystem>

#include <unistd.h>

#include "tessera/base/cpu.h"
#include "tessera/base/temporary_folder.h"
#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"
#include "tessera/cli/quantize.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct BenchQuantArgs {
  LoadFlags loading;
  std::string model, text, imatrix, work, calibration_text;
  std::vector<std::string> types;
  int64_t tokens = 1024, calibration_tokens = 16384, window = 512, decode = 32;
  ProductFlags products;
  int threads = 0;
  bool requantize = false, json = false;
};

const std::vector<std::string> kDefaultTypes = {"Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M"};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One row of the table.
struct Variant {
  convert::QuantizeOptions options;
  bool by_importance = false;
  Calibration calibration;
};

/// "Q4_K_M+blk.*.attn_*=q8_0+gptq": a recipe, rules before it, and what it is calibrated by.
Variant variant_of(const std::string& text, bool requantize) {
  Variant out;
  convert::QuantizeOptions& options = out.options;
  options.requantize = requantize;
  size_t begin = 0;
  for (bool first = true; begin <= text.size(); first = false) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    if (first)
      options.recipe = part;
    else if (part == "importance")
      out.by_importance = true;
    else if (part == "awq" || part == "gptq")
      out.calibration.method += (out.calibration.method.empty() ? "" : "+") + part;
    else if (part == "act-order")
      out.calibration.feedback.by_activity = true;
    else
      options.rules.push_back(convert::parse_type_rule(part));
    begin = end + 1;
  }
  if (out.calibration.feedback.by_activity && !out.calibration.has("gptq"))
    fail(ErrorKind::usage, "bench", "{}: act-order without gptq, whose columns it orders", text);
  return out;
}

/// What kinds of matrices a file is made of.
const char* kind_of(const std::string& name) {
  if (name.find("_exps") != std::string::npos) return "experts";
  if (name.find("attn") != std::string::npos) return "attention";
  if (name.find("ffn") != std::string::npos) return "feed_forward";
  return "other";
}

/// Bits a number, by kind of matrix.
Json bits_by_kind(const convert::GgufModel& model, const convert::QuantizeReport& report) {
  std::map<std::string, std::pair<int64_t, int64_t>> sums;  // bytes, numbers
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    if (!convert::is_large_matrix(model.tensors[i])) continue;
    const int64_t n = format::element_count(model.tensors[i].shape);
    auto& [bytes, numbers] = sums[kind_of(model.tensors[i].name)];
    bytes += storage_bytes(report.types[i], n);
    numbers += n;
  }
  Json bits = Json::object();
  for (const auto& [kind, sum] : sums)
    bits[kind] = 8.0 * static_cast<double>(sum.first) / static_cast<double>(sum.second);
  return bits;
}

// --- what models say -----------------------------------------------------------------------------

using Windows = std::vector<std::vector<int64_t>>;

/// ln p of every token after each of a window, [T - 1, V].
Tensor log_p_of(const model::Model& model, const std::vector<int64_t>& ids) {
  model::ForwardOptions options;
  options.cancel = &cancel_token();
  const Tensor hidden = model.hidden(nn::Batch::of({ids}, {0}), options);
  return at::log_softmax(model.logits(hidden.narrow(0, 0, hidden.size(0) - 1)).to(at::kFloat), -1);
}

Tensor targets_of(const std::vector<int64_t>& ids) {
  return at::tensor(std::vector<int64_t>(ids.begin() + 1, ids.end()), at::kLong);
}

struct Compared {
  double nll = 0, kl = 0;
  int64_t same = 0, targets = 0;
  double seconds = 0;
};

/// Over all windows, a few rows at a time: vocabularies are wide.
Compared compare(const model::Model& model,
                 const Windows& windows,
                 const std::vector<Tensor>& reference) {
  constexpr int64_t kRows = 64;
  Compared sum;
  for (size_t w = 0; w < windows.size(); ++w) {
    const auto start = Clock::now();
    const Tensor q = log_p_of(model, windows[w]);
    sum.seconds += seconds_since(start);
    const Tensor targets = targets_of(windows[w]);
    for (int64_t i = 0; i < q.size(0); i += kRows) {
      const int64_t n = std::min(kRows, q.size(0) - i);
      const Tensor p = reference[w].narrow(0, i, n).to(at::kDouble),
                   own = q.narrow(0, i, n).to(at::kDouble);
      sum.kl += (p.exp() * (p - own)).sum().item<double>();
      sum.same += p.argmax(-1).eq(own.argmax(-1)).sum().item<int64_t>();
      sum.nll -= own.gather(1, targets.narrow(0, i, n).unsqueeze(1)).sum().item<double>();
    }
    sum.targets += q.size(0);
  }
  return sum;
}

/// Tokens per second, one after another.
double decode_speed(const model::Model& model, const std::vector<int64_t>& ids, int64_t count) {
  if (count == 0 || !model.spec().no_state_reason().empty()) return 0;
  model::State state(model.spec(), 1);
  const auto feed = [&](const std::vector<int64_t>& tokens) {
    model::ForwardOptions options;
    options.state = &state;
    options.cancel = &cancel_token();
    const Tensor hidden = model.hidden(nn::Batch::of({tokens}, {state.length(0)}), options);
    model.logits(hidden.narrow(0, hidden.size(0) - 1, 1));
  };
  constexpr int64_t kBefore = 16;
  const auto begin = ids.begin();
  const int64_t before = std::min<int64_t>(kBefore, std::ssize(ids) / 2);
  feed({begin, begin + before});
  const int64_t most = std::min(count, std::ssize(ids) - before);
  const auto start = Clock::now();
  for (int64_t i = 0; i < most; ++i) feed({ids[static_cast<size_t>(before + i)]});
  return static_cast<double>(most) / seconds_since(start);
}

Json row_of(const std::string& type, int64_t bytes, const Compared& c, double decode) {
  const auto n = static_cast<double>(c.targets);
  return {{"type", type},
          {"bytes", bytes},
          {"perplexity", std::exp(c.nll / n)},
          {"kl", c.kl / n},
          {"top_1", static_cast<double>(c.same) / n},
          {"prefill_tokens_per_s", n / std::max(c.seconds, 1e-9)},
          {"decode_tokens_per_s", decode}};
}

void print_table(const Json& rows) {
  fmt::print(
      "| type | MiB | bits | perplexity | KL, nats | top-1 agreement | prefill | decode | bits of "
      "|\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|\n");
  for (const Json& row : rows) {
    std::string kinds;
    const Json by_kind = row.value("bits_by_kind", Json::object());
    for (const auto& [kind, bits] : by_kind.items())
      kinds += fmt::format("{}{} {:.2f}", kinds.empty() ? "" : ", ", kind, bits.get<double>());
    fmt::print("| {} | {:.1f} | {:.2f} | {:.4f} | {:.2e} | {:.2f} % | {:.0f} | {:.1f} | {} |\n",
               row["type"].get<std::string>(), row["bytes"].get<double>() / (1 << 20),
               row["bits"].get<double>(), row["perplexity"].get<double>(), row["kl"].get<double>(),
               100 * row["top_1"].get<double>(), row["prefill_tokens_per_s"].get<double>(),
               row["decode_tokens_per_s"].get<double>(), kinds);
  }
}

Windows windows_of(const BenchQuantArgs& o, const infer::LoadedModel& loaded) {
  if (!loaded.tokenizer) fail(ErrorKind::usage, "bench", "{} has no tokenizer", o.model);
  const auto ids =
      loaded.tokenizer->encode(read_text_input(o.text, &cancel_token()), {.add_special = true});
  int64_t window = o.window;
  if (const int64_t limit = loaded.model.spec().max_positions(); limit > 0)
    window = std::min(window, limit);
  Windows windows;
  const int64_t count = std::min<int64_t>(std::ssize(ids), o.tokens);
  for (int64_t begin = 0; begin + 1 < count; begin += window)
    windows.emplace_back(ids.begin() + begin, ids.begin() + std::min(count, begin + window));
  if (!windows.empty() && windows.back().size() < 2) windows.pop_back();
  if (windows.empty())
    fail(ErrorKind::input, "bench", "{} has {} tokens; expected 2 at least", o.text, ids.size());
  return windows;
}

int bench_quant(BenchQuantArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (o.types.empty()) o.types = kDefaultTypes;
  // every mistake in the types before anything is computed
  const convert::GgufModel source = convert::load_gguf_model(o.model, o.loading.options());
  convert::Importance importance;
  if (!o.imatrix.empty()) importance = convert::read_importance(o.imatrix);
  std::vector<Variant> all;
  bool reads = false;
  for (const std::string& type : o.types) {
    all.push_back(variant_of(type, o.requantize));
    Variant& own = all.back();
    const bool by_text = own.by_importance || !own.calibration.method.empty();
    if (by_text && o.calibration_text.empty())
      fail(ErrorKind::usage, "bench", "{} needs a text that the model reads first: --calibration",
           type);
    if (own.calibration.has("awq")) convert::scaling_products(source);
    reads = reads || by_text;
    if (!importance.empty()) own.options.importance = &importance;
    if (!by_text) convert::report_of(source, own.options);
  }
  const infer::LoadedModel loaded = infer::load_model(o.model, o.loading.options());
  say_differences(loaded.source);
  if (loaded.model.spec().arch != model::Arch::decoder || !loaded.model.has_head())
    fail(ErrorKind::usage, "bench", "{} is no decoder with a head, whose next tokens are compared",
         o.model);
  const Windows windows = windows_of(o, loaded);
  const at::NoGradGuard no_gradients;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](const std::string& what) {
    if (terminal) fmt::print(stderr, "\r\x1b[K{}", what);
  };

  progress("the model as it is");
  std::vector<Tensor> reference;
  for (const auto& ids : windows) reference.push_back(log_p_of(loaded.model, ids));
  int64_t numbers = 0, own_bytes = 0;
  for (const format::TensorView& tensor : source.tensors) {
    numbers += format::element_count(tensor.shape);
    own_bytes += std::ssize(tensor.data);
  }
  const auto bits = [&](Json row) {
    row["bits"] = 8.0 * row["bytes"].get<double>() / static_cast<double>(numbers);
    return row;
  };
  const Compared self = compare(loaded.model, windows, reference);
  Json rows = Json::array();
  rows.push_back(
      bits(row_of("as it is", own_bytes, self, decode_speed(loaded.model, windows[0], o.decode))));

  MeasuredImportance measured;
  if (reads)
    measured = importance_meter()(
        {o.model, o.calibration_text, o.loading.options(), o.calibration_tokens});

  const TemporaryFolder work(o.work, "--work DIR");
  for (size_t i = 0; i < all.size(); ++i) {
    progress(o.types[i]);
    convert::GgufModel changed = source;
    convert::Importance own_importance;
    if (all[i].by_importance) all[i].options.importance = &measured.by_name;
    if (!all[i].calibration.method.empty())
      calibrate(all[i].calibration, measured, changed, own_importance, all[i].options);
    const convert::QuantizeReport report =
        convert::write_quantized(std::move(changed), work.path() / "model.gguf", all[i].options);
    const infer::LoadedModel own =
        infer::load_model(report.files.front(), {o.loading.families}, o.products.arithmetic());
    const Compared compared = compare(own.model, windows, reference);
    Json row = bits(
        row_of(o.types[i], report.bytes, compared, decode_speed(own.model, windows[0], o.decode)));
    row["bits_by_kind"] = bits_by_kind(source, report);
    rows.push_back(std::move(row));
    for (const fs::path& file : report.files) fs::remove(file);
  }
  progress("");
  if (o.json)
    print_json({{"rows", rows},
                {"model", o.model},
                {"tokens", self.targets},
                {"products", o.products.name()},
                {"activation_bits", o.products.activation_bits()},
                {"threads", thread_count()},
                {"cpu", cpu_info().model}});
  else
    print_table(rows);
  return kExitOk;
}

}  // namespace

std::function<int()> add_bench_quant(CLI::App& app) {
  auto o = std::make_shared<BenchQuantArgs>();
  group(app, "Workload");
  add_model(app, o->model,
            "model with float weights: Hugging Face or tessera folder, GGUF file, or run");
  app.add_option("--text,-f,--file", o->text, "evaluation text; - = standard input")->required();
  group(app, "Quantization type");
  app.add_option("--type", o->types,
                 "quantization type (`tessera quantize --type`) with rules: "
                 "'Q4_K_M+blk.*.attn_*=q8_0', and '+importance', '+gptq', '+gptq+act-order', "
                 "'+awq' or '+awq+gptq' by --calibration; repeatable. Default: Q8_0, Q6_K, Q5_K_M, "
                 "Q4_K_M, Q3_K_M")
      ->allow_extra_args(false);
  auto* calibration = app.add_option("--calibration", o->calibration_text,
                                     "calibration text of types with '+importance', '+gptq', ...");
  app.add_option("--calibration-tokens", o->calibration_tokens,
                 "maximum tokens of the calibration text")
      ->capture_default_str()
      ->needs(calibration)
      ->check(positive());
  group(app, "Workload");
  app.add_option("--tokens", o->tokens,
                 "maximum tokens of the evaluation text; their logits stay in memory")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--window,-c,--ctx-size", o->window, "tokens per window")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--decode,-n", o->decode, "generated tokens to measure speed; 0 = none")
      ->capture_default_str()
      ->check(not_negative());
  group(app, "Quantization type");
  app.add_option("--imatrix", o->imatrix, "read an imatrix file (llama.cpp)");
  app.add_flag("--requantize,--allow-requantize", o->requantize, "allow quantized input");
  group(app, "Output");
  app.add_option("--work", o->work, "folder of temporary files");
  app.add_flag("--json", o->json, "rows as JSON instead of a Markdown table");
  group(app, "Precision and performance");
  o->products.add_arithmetic(app);
  add_threads(app, o->threads);
  group(app, "Model");
  o->loading.add(app);
  examples(app, {"tessera bench quant SmolLM2-135M --text wiki.txt",
                 "tessera bench quant model-f16.gguf --text wiki.txt --type Q4_K_M "
                 "--type 'Q4_K_M+blk.*.attn_*=q8_0' --type 'Q4_K_M+blk.*_exps*=q3_k' --json",
                 "tessera bench quant model-f16.gguf --text test.txt --calibration valid.txt "
                 "--type Q3_K_M --type Q3_K_M+importance --type Q3_K_M+gptq"});
  return [o] { return bench_quant(*o); };
}

}  // namespace tessera::cli
