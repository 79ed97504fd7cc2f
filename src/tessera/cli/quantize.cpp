#include "tessera/cli/load_flags.h"
#include "tessera/cli/quantize.h"

#include <algorithm>
#include <chrono>

#include <fmt/ranges.h>
#include <unistd.h>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"

namespace tessera::cli {
namespace {

struct QuantizeArgs {
  LoadFlags loading;
  std::string model, type, type_option, out, out_option, text, imatrix, save_imatrix, tokenizer,
      family;
  std::vector<std::string> rules;
  Calibration calibration;
  int64_t part_mib = 0, tokens = 65536, calibrate_mib = 2048;
  bool pure = false, requantize = false, dry_run = false, json = false, force = false;
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
  fmt::print("{:.1f} MiB, {:.2f} bits per weight (before: {:.1f} MiB); {}; {:.1f} s\n",
             mib(report.bytes), bits_per_weight(report), mib(report.bytes_before),
             fmt::join(shares, ", "), seconds);
}

int quantize(const QuantizeArgs& o, const ImportanceMeter& meter) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (!o.dry_run && o.out.empty())
    fail(ErrorKind::usage, "quantize", "--out FILE is missing (or use --dry-run to report only)");
  if (!o.dry_run) check_gguf_place("quantize", o.out, o.part_mib, o.force);
  if (!o.save_imatrix.empty()) check_out_place("quantize", o.save_imatrix, o.force);
  convert::QuantizeOptions options;
  options.recipe = o.type;
  for (const std::string& rule : o.rules) options.rules.push_back(convert::parse_type_rule(rule));
  options.pure = o.pure;
  options.requantize = o.requantize;
  options.part_bytes = o.part_mib << 20;
  convert::GgufModel model = convert::load_gguf_model(o.model, o.loading.options(),
                                                      {o.loading.families, o.family, o.tokenizer});
  for (const std::string& remark : model.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  convert::Importance importance;
  if (!o.imatrix.empty()) importance = convert::read_importance(o.imatrix);
  MeasuredImportance measured;
  // an unsupported architecture fails before the text is read
  if (o.calibration.has("awq")) convert::scaling_products(model);
  if (!o.text.empty()) {
    measured = meter({o.model, o.text, o.loading.options(), o.tokens});
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
           "the importance matrix has none of the model's tensors; its first is {}",
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
    if (notes->size() > 1) fmt::print(stderr, ", and {} more tensors", notes->size() - 1);
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

namespace {

/// llama-quantize has IN OUT TYPE or IN TYPE.
void settle_positionals(QuantizeArgs& o) {
  const std::vector<std::string>& types = convert::quantize_recipes();
  if (!o.out_option.empty()) o.out = o.out_option;
  if (!o.type_option.empty()) o.type = o.type_option;
  if (o.type.empty() && std::find(types.begin(), types.end(), o.out) != types.end())
    std::swap(o.type, o.out);
  if (o.type.empty())
    fail(ErrorKind::usage, "quantize", "--type is required; expected one of {}",
         fmt::join(types, ", "));
}

}  // namespace

std::function<int()> add_quantize(CLI::App& app) {
  // main() has handed what needs one to the other program
  return add_quantize(app, ImportanceMeter());
}

std::function<int()> add_quantize(CLI::App& app, ImportanceMeter meter) {
  auto o = std::make_shared<QuantizeArgs>();
  group(app, "Input");
  add_model(app, o->model,
            "model with float weights: Hugging Face or tessera folder, GGUF file, or run");
  auto* out_file = app.add_option("out", o->out, "GGUF file to write, as --out");
  auto* type_name = app.add_option("type", o->type, "quantization type, as --type");
  group(app, "Output");
  add_out(app, o->out_option, "GGUF file to write", "--outfile")->excludes(out_file);
  add_force(app, o->force);
  app.add_option("--part-mib", o->part_mib,
                 "split into shards of N MiB (NAME-00001-of-00003.gguf); 0 = one file")
      ->capture_default_str()
      ->check(not_negative());
  app.add_flag("--dry-run", o->dry_run, "report only");
  app.add_flag("--json", o->json, "report as JSON");
  app.add_option("--family", o->family, "model family to write as; default: the model's own");
  group(app, "Quantization type");
  app.add_option("--type", o->type_option,
                 fmt::format("quantization type, llama.cpp's names: {}",
                             fmt::join(convert::quantize_recipes(), ", ")))
      ->excludes(type_name);
  app.add_option("--rule", o->rules,
                 "per-tensor type, GGUF-NAME-PATTERN=TYPE (f32, f16, bf16, q8_0, q4_k, ...), '*' = "
                 "any; first match wins; repeatable")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--pure", o->pure, "one type for all matrices");
  app.add_flag("--requantize,--allow-requantize", o->requantize, "allow quantized input");
  group(app, "Importance matrix");
  auto* text = app.add_option(kImportance, o->text,
                              "calibration text for an importance matrix; - = standard input");
  app.add_option("--importance-tokens", o->tokens, "maximum tokens of the calibration text")
      ->capture_default_str()
      ->needs(text)
      ->check(positive());
  app.add_option("--imatrix", o->imatrix, "read an imatrix file (GGUF)")->excludes(text);
  app.add_option("--save-imatrix", o->save_imatrix,
                 "write the imatrix file (GGUF), as llama.cpp reads it")
      ->needs(text);
  group(app, "Calibration (GPTQ, AWQ)");
  auto* calibrate = app.add_option("--calibrate", o->calibration.method, "calibration method")
                        ->needs(text)
                        ->check(CLI::IsMember(calibration_methods()));
  app.add_flag("--act-order", o->calibration.feedback.by_activity, "GPTQ: activation order")
      ->needs(calibrate);
  app.add_option("--damping", o->calibration.feedback.damping,
                 "GPTQ: damping of the Hessian diagonal, times its mean")
      ->capture_default_str()
      ->needs(calibrate)
      ->check(CLI::Range(1e-8, 1e3));
  app.add_option("--calibrate-mib", o->calibrate_mib,
                 "memory for calibration, MiB; more passes over the text with less")
      ->capture_default_str()
      ->needs(calibrate)
      ->check(positive());
  group(app, "Input");
  names_model(app.add_option("--tokenizer", o->tokenizer,
                             "model or tokenizer file, if the folder has no tokenizer"),
              o->tokenizer);
  o->loading.add(app);
  group(app, "Precision and performance");
  add_threads(app, o->threads);
  examples(app, {"tessera quantize SmolLM2-135M --type Q4_K_M --out smol.gguf",
                 "tessera quantize model-f16.gguf --type Q4_K_M --rule 'blk.*.attn_v.weight=q8_0' "
                 "--out model.gguf",
                 "tessera quantize folder --type IQ4_XS --importance text.txt --save-imatrix "
                 "imatrix.gguf --out model.gguf",
                 "tessera quantize folder --type Q3_K_M --importance text.txt --calibrate gptq "
                 "--out model.gguf",
                 "tessera quantize model-f16.gguf --type Q6_K --dry-run"});
  return [=] {
    settle_positionals(*o);
    return quantize(*o, meter);
  };
}

}  // namespace tessera::cli
