#include "tessera/infer/encoders/embed.h"

#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/product_flags.h"
#include "tessera/format/file_source.h"
#include "tessera/format/npy.h"
#include "tessera/infer/loading/tensor_files.h"

namespace tessera::cli {
namespace {

struct EmbedArgs {
  LoadFlags loading;
  std::string model, file, output, pooling, prompt, prompt_name;
  std::vector<std::string> adapters;
  std::vector<std::string> texts;
  bool json = false, normalize = false, no_normalize = false, parse_special = false;
  bool prompt_given = false, force = false;
  int64_t max_tokens = 0, dimensions = 0;
  ProductFlags products;
  DeviceFlag device;
  int threads = 0;
};

/// The lines of a file; a last one without a line end counts.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

std::vector<float> floats(const Tensor& x_D) {
  const Tensor x = x_D.contiguous();
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel()};
}

void write(const std::string& path, const Tensor& vectors_RD) {
  const std::string extension = std::filesystem::path(path).extension();
  if (extension == ".safetensors") return infer::write_tensors(path, {{"embeddings", vectors_RD}});
  const Tensor held = vectors_RD.contiguous();
  format::write_npy(path, {"embeddings",
                           DType::f32,
                           held.sizes().vec(),
                           {static_cast<const std::byte*>(held.const_data_ptr()),
                            static_cast<size_t>(held.nbytes())},
                           nullptr});
}

/// The prompt of a name; Error(usage) where the folder has none of it.
std::string prompt_called(const std::string& name, const infer::EmbedOptions& options) {
  const auto found = options.prompts.find(name);
  if (found != options.prompts.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, prompt] : options.prompts) names.push_back(format::in_quotes(known));
  fail(ErrorKind::usage, "embed", "the model has no prompt {}; expected {}",
       format::in_quotes(name),
       names.empty() ? "--prompt TEXT, as it names none"
                     : fmt::format("{}", fmt::join(names, ", ")));
}

/// The folder means the special tokens of its own prompts; as text they would be others.
void check_prompt(const text::Tokenizer& tokenizer, const infer::EmbedOptions& options) {
  const auto ids = [&](bool parse) {
    return tokenizer.encode(options.prompt, {.add_special = false, .parse_special = parse});
  };
  if (!options.parse_special && ids(true) != ids(false))
    fail(ErrorKind::usage, "embed",
         "the folder's prompt {} holds special tokens; expected --parse-special, which reads them "
         "in the texts too, or --prompt TEXT",
         format::in_quotes(options.prompt));
}

int embed(const EmbedArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  check_out_place("embed", o.output, o.force, holds_array("embeddings"));
  infer::EmbedOptions options = infer::embed_options_of(o.model, o.adapters);
  if (!o.pooling.empty()) options.poolings = {infer::pooling_named(o.pooling)};
  if (o.normalize || o.no_normalize) options.normalize = o.normalize;
  options.renormalize = o.normalize || o.dimensions > 0;
  if (o.dimensions > 0) options.dimensions = o.dimensions;
  if (o.max_tokens > 0) options.max_tokens = o.max_tokens;
  if (!o.prompt_name.empty()) options.prompt = prompt_called(o.prompt_name, options);
  if (o.prompt_given) options.prompt = o.prompt;
  options.parse_special = o.parse_special;
  options.cancel = &cancel_token();
  options.file = o.file == "-" ? "standard input" : o.file;
  const std::vector<std::string> texts =
      o.file.empty() ? o.texts : lines_of(read_text_input(o.file, &cancel_token()));
  const infer::LoadedModel loaded = o.device.loaded([&] {
    return infer::load_model(o.model, o.loading.options(), o.adapters, o.products.products());
  });
  say_differences(loaded.source);
  o.products.check(loaded.model);
  if (!o.prompt_given && loaded.tokenizer) check_prompt(*loaded.tokenizer, options);
  const infer::Embeddings result = infer::embed(loaded, texts, options);
  if (result.cut > 0)
    fmt::print(stderr, "tessera: {} texts truncated to the maximum length\n", result.cut);
  if (!o.output.empty()) write(o.output, result.vectors_RD);
  if (o.json) {
    Json vectors = Json::array();
    if (o.output.empty())
      for (int64_t r = 0; r < result.vectors_RD.size(0); ++r)
        vectors.push_back(floats(result.vectors_RD.select(0, r)));
    Json report = {{"texts", texts.size()},
                   {"width", result.vectors_RD.size(1)},
                   {"tokens", result.tokens},
                   {"cut", result.cut},
                   {"pooling", infer::names_of(options.poolings)},
                   {"normalized", options.normalize},
                   {"prompt", options.prompt}};
    if (o.output.empty()) report["embeddings"] = vectors;
    print_json(report);
  } else if (o.output.empty()) {
    for (int64_t r = 0; r < result.vectors_RD.size(0); ++r)
      fmt::print("{}\n", fmt::join(floats(result.vectors_RD.select(0, r)), " "));
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_embed(CLI::App& app) {
  auto o = std::make_shared<EmbedArgs>();
  group(app, "Input");
  add_model(app, o->model,
            "embedding model: Hugging Face or sentence-transformers folder, GGUF file, or run");
  auto* text = add_texts(app, "--text,-p", o->texts, "text to embed; repeatable");
  auto* file =
      app.add_option("--file,-f", o->file, "file with one text a line; - = standard input");
  text->excludes(file);
  app.add_flag("--parse-special", o->parse_special,
               "parse special tokens in the texts, such as [MASK]");
  app.add_option("--max-tokens", o->max_tokens, "truncate texts to N tokens")->check(positive());
  group(app, "Pooling and prompts");
  app.add_option("--pooling", o->pooling, "pooling; default as the model says, else mean")
      ->check(CLI::IsMember({"mean", "cls", "max", "last", "mean_sqrt_len", "weightedmean"}));
  app.add_option("--dimensions,--truncate-dim", o->dimensions,
                 "keep the first N numbers of each vector (Matryoshka models); normalized again "
                 "where vectors are")
      ->check(positive());
  auto* prompt_name = app.add_option("--prompt-name", o->prompt_name,
                                     "named prompt of the folder (sentence-transformers)");
  auto* prompt = app.add_option("--prompt", o->prompt, "literal prefix for every text; '' = none");
  prompt->excludes(prompt_name);
  auto* normalize = app.add_flag("--normalize", o->normalize, "L2-normalize");
  app.add_flag("--no-normalize", o->no_normalize,
               "do not normalize; default as the model says, else normalized")
      ->excludes(normalize);
  group(app, "Output");
  add_out(app, o->output, "write float32 [texts, width] to this .npy or .safetensors file")
      ->check([](const std::string& path) {
        return path.ends_with(".npy") || path.ends_with(".safetensors")
                   ? std::string()
                   : "\"" + path + "\"; expected a name that ends in .npy or .safetensors";
      });
  add_force(app, o->force);
  app.add_flag("--json", o->json, "vectors, or with --out facts about them, as JSON");
  group(app, "Precision and performance");
  o->products.add(app);
  o->device.add(app);
  add_threads(app, o->threads);
  group(app, "Model");
  add_adapters(app, o->adapters);
  o->loading.add(app);
  examples(app, {"tessera embed all-MiniLM-L6-v2 --text 'A cat' --text 'A dog' --json",
                 "tessera embed all-MiniLM-L6-v2 --file lines.txt --out vectors.npy",
                 "grep -h TODO *.txt | tessera embed folder --file - --prompt 'query: '"});
  return [o, text, file, prompt] {
    o->prompt_given = !prompt->empty();
    if (text->empty() && file->empty())
      fail(ErrorKind::usage, "embed", "nothing to embed; expected --text or --file");
    return embed(*o);
  };
}

}  // namespace tessera::cli
