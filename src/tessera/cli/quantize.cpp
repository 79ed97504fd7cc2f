#include "tessera/cli/quantize.h"

#include <algorithm>
#include <chrono>

#include <fmt/ranges.h>
#include <unistd.h>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"

namespace tessera::cli {
namespace {

struct QuantizeArgs {
  std::string model, type, out, text, imatrix, save_imatrix, tokenizer, families, family;
  std::vector<std::string> rules;
  Calibration calibration;
  int64_t part_mib = 0, tokens = 65536, calibrate_mib = 2048;
  bool pure = false, requantize = false, dry_run = false, json = false;
  int threads = 0;
};

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

double bits_per_weight(const convert::QuantizeReport& report) {
  return report.elements == 0
             ? 0
             : 8 * static_cast<double>(report.bytes) / static_cast<double>(report.elements);
}

void say(const QuantizeArgs& o, const convert::QuantizeReport& report, double seconds) {
  if (o.json) {
    Json types = Json::object();
    for (const auto& [type, elements] : report.elements_of)
      types[std::string(name_of(type))] = elements;
    Json files = Json::array();
    for (const auto& file : report.files) files.push_back(file.string());
    print_json({{"files", files},
                {"bytes", report.bytes},
                {"bytes_before", report.bytes_before},
                {"weights", report.elements},
                {"bits_per_weight", bits_per_weight(report)},
                {"weights_of_type", types},
                {"notes", report.notes},
                {"seconds", seconds}});
    return;
  }
  std::vector<std::string> shares;
  for (const auto& [type, elements] : report.elements_of)
    shares.push_back(fmt::format("{} {:.1f} %", name_of(type),
                                 100 * static_cast<double>(elements) /
                                     static_cast<double>(std::max<int64_t>(1, report.elements))));
  fmt::print("{:.1f} MiB, {:.2f} bits a weight (before: {:.1f} MiB); {}; {:.1f} s\n",
             mib(report.bytes), bits_per_weight(report), mib(report.bytes_before),
             fmt::join(shares, ", "), seconds);
}

int quantize(const QuantizeArgs& o, const ImportanceMeter& meter) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (!o.dry_run && o.out.empty())
    fail(ErrorKind::usage, "quantize", "nowhere to write to; expected --out FILE or --dry-run");
  convert::QuantizeOptions options;
  options.recipe = o.type;
  for (const std::string& rule : o.rules) options.rules.push_back(convert::parse_type_rule(rule));
  options.pure = o.pure;
  options.requantize = o.requantize;
  options.part_bytes = o.part_mib << 20;
  convert::GgufModel model = convert::load_gguf_model(o.model, {o.families, o.family, o.tokenizer});
  for (const std::string& remark : model.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  convert::Importance importance;
  if (!o.imatrix.empty()) importance = convert::read_importance(o.imatrix);
  MeasuredImportance measured;
  // what is not known is said before the text is read
  if (o.calibration.has("awq")) convert::scaling_products(model);
  if (!o.text.empty()) {
    measured = meter({o.model, o.text, o.families, o.tokens});
    if (!o.save_imatrix.empty())
      convert::write_importance(o.save_imatrix, measured.by_name, measured.tokens, o.text);
    importance = measured.by_name;
  }
  std::vector<std::string> unscaled;
  if (!importance.empty()) {
    options.importance = &importance;
    const auto known = [&](const format::TensorView& t) { return importance.contains(t.name); };
    if (std::none_of(model.tensors.begin(), model.tensors.end(), known))
      fail(ErrorKind::usage, "quantize",
           "the importance speaks of none of the model's tensors; its first is {}",
           importance.begin()->first);
  }
  if (!o.calibration.method.empty() && !o.dry_run) {
    Calibration how = o.calibration;
    how.bytes = o.calibrate_mib << 20;
    unscaled = calibrate(how, measured, model, importance, options);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  options.progress = [&](size_t done, size_t total, const std::string& name, DType type) {
    cancel_token().check("quantize");
    if (terminal) fmt::print(stderr, "\r\x1b[K{} of {}: {} {}", done, total, name, name_of(type));
  };
  convert::QuantizeReport report;
  if (o.dry_run)
    report = convert::report_of(model, options);
  else
    report = convert::write_quantized(std::move(model), o.out, options);
  if (terminal) fmt::print(stderr, "\r\x1b[K");
  for (const auto* notes : {&unscaled, &report.notes}) {
    if (notes->empty()) continue;
    fmt::print(stderr, "tessera: {}", notes->front());
    if (notes->size() > 1) fmt::print(stderr, ", and {} more tensors likewise", notes->size() - 1);
    fmt::print(stderr, "\n");
  }
  report.notes.insert(report.notes.end(), unscaled.begin(), unscaled.end());
  say(o, report, seconds());
  for (const auto& file : report.files) fmt::print(stderr, "tessera: wrote {}\n", file.string());
  return kExitOk;
}

}  // namespace

const std::vector<std::string>& calibration_methods() {
  static const std::vector<std::string> methods = {"gptq", "awq", "awq+gptq"};
  return methods;
}

std::vector<std::string> calibrate(const Calibration& how,
                                   const MeasuredImportance& measured,
                                   convert::GgufModel& model,
                                   convert::Importance& importance,
                                   convert::QuantizeOptions& options) {
  importance = measured.by_name;
  options.importance = &importance;
  const convert::QuantizeReport report = convert::report_of(model, options);
  std::vector<std::string> order, notes;
  if (how.has("awq")) order = convert::scaling_products(model);
  if (how.has("gptq")) {
    const auto rounded = convert::calibrated(model, report);
    order.insert(order.end(), rounded.begin(), rounded.end());
  }
  convert::InputProductsOf products = measured.products(order, how.bytes);
  if (how.has("awq")) {
    const convert::InputScaling scaling = convert::scale_inputs(model, report, products);
    importance = scaling.importance(std::move(importance));
    products = scaling.products(std::move(products));
    notes = scaling.notes;
  }
  if (how.has("gptq")) {
    options.products = std::move(products);
    options.feedback = how.feedback;
  }
  return notes;
}

std::function<int()> add_quantize(CLI::App& app) {
  // main() has handed what needs one to the other program
  return add_quantize(app, ImportanceMeter());
}

std::function<int()> add_quantize(CLI::App& app, ImportanceMeter meter) {
  auto o = std::make_shared<QuantizeArgs>();
  app.add_option("model", o->model,
                 "floating-point weights: a Hugging Face or tessera folder, or a GGUF file")
      ->required();
  app.add_option("--type", o->type,
                 fmt::format("llama.cpp's name of a mixture of types: {}",
                             fmt::join(convert::quantize_recipes(), ", ")))
      ->required();
  app.add_option("--out", o->out, "the GGUF file to write");
  app.add_option("--rule", o->rules,
                 "NAMES=TYPE: another type for the tensors whose GGUF names match ('*' is any "
                 "text), one of f32, f16, bf16, q8_0, q4_k, ...; of several rules the first")
      ->allow_extra_args(false)
      ->take_all();
  auto* text = app.add_option(kImportance, o->text,
                              "a text that the model reads first, or - for standard input: errors "
                              "then count by what columns multiply");
  app.add_option("--importance-tokens", o->tokens, "with --importance: tokens of the text at most")
      ->capture_default_str()
      ->needs(text)
      ->check(positive());
  app.add_option("--save-imatrix", o->save_imatrix,
                 "with --importance: writes what was measured, as llama.cpp reads it")
      ->needs(text);
  auto* calibrate =
      app.add_option("--calibrate", o->calibration.method,
                     "with --importance: 'gptq' feeds the error of each rounded column into those "
                     "behind it, 'awq' first moves scales of channels between matrices; "
                     "'awq+gptq' does both")
          ->needs(text)
          ->check(CLI::IsMember(calibration_methods()));
  app.add_flag("--act-order", o->calibration.feedback.by_activity,
               "with gptq: columns of large inputs first, by scales of the numbers as they were")
      ->needs(calibrate);
  app.add_option("--damping", o->calibration.feedback.damping,
                 "with gptq: what is added to the diagonal of the inputs' products, times its mean")
      ->capture_default_str()
      ->needs(calibrate)
      ->check(CLI::Range(1e-8, 1e3));
  app.add_option("--calibrate-mib", o->calibrate_mib,
                 "memory for products of inputs; what does not fit is gathered by further passes "
                 "over the text")
      ->capture_default_str()
      ->needs(calibrate)
      ->check(positive());
  app.add_option("--imatrix", o->imatrix, "importance that was measured before: a GGUF imatrix")
      ->excludes(text);
  app.add_flag("--pure", o->pure, "the mixture's main type for every matrix");
  app.add_flag("--requantize", o->requantize,
               "take matrices that are in blocks already, which rounds them twice");
  app.add_option("--part-mib", o->part_mib,
                 "files of at most so many MiB, NAME-00001-of-00003.gguf; 0 = one file")
      ->capture_default_str()
      ->check(not_negative());
  app.add_flag("--dry-run", o->dry_run, "only says what would be written");
  app.add_option("--tokenizer", o->tokenizer,
                 "a model or tokenizer file, where the folder has none");
  app.add_option("--family", o->family, "the family to write as, where it is not the model's own");
  app.add_option("--families", o->families, "a folder of further family files");
  app.add_flag("--json", o->json, "the report as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  examples(app, {"tessera quantize SmolLM2-135M --type Q4_K_M --out smol.gguf",
                 "tessera quantize model-f16.gguf --type Q4_K_M --rule 'blk.*.attn_v.weight=q8_0' "
                 "--out model.gguf",
                 "tessera quantize folder --type IQ4_XS --importance text.txt --save-imatrix "
                 "imatrix.gguf --out model.gguf",
                 "tessera quantize folder --type Q3_K_M --importance text.txt --calibrate gptq "
                 "--out model.gguf",
                 "tessera quantize model-f16.gguf --type Q6_K --dry-run"});
  return [=] { return quantize(*o, meter); };
}

}  // namespace tessera::cli
