#include "tessera/cli/convert.h"

#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/out_place.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/kv_heads.h"
#include "tessera/convert/rounded.h"
#include "tessera/convert/text_settings.h"
#include "tessera/convert/tokenizer.h"

namespace tessera::cli {
namespace {

const std::map<std::string, convert::PoolHeads> kPools = {{"mean", convert::PoolHeads::mean},
                                                          {"first", convert::PoolHeads::first},
                                                          {"random", convert::PoolHeads::random}};

struct ConvertArgs {
  LoadFlags loading;
  std::string model, out, to, tokenizer, family, pool = "mean", dtype;
  std::string reference, use, text, merge_adapter, unmerge_adapter, export_adapter;
  int64_t kv_heads = 0, upcycle = 0, k = 2, every = 1, keep_experts = 0, grow_experts = 0;
  int64_t steps = 500, tokens = 16384, part_mib = 0;
  uint64_t shard_bytes = 0;
  double noise = 0.01;
  bool merge_experts = false, distill_experts = false;
  uint64_t seed = 0;
  bool float32 = false, force = false;
};

const std::map<std::string, DType> kFloatTypes = {
    {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};

convert::HfOptions hf_options(const ConvertArgs& o) {
  convert::HfOptions options{.family = o.family,
                             .families = o.loading.families,
                             .float32 = o.float32,
                             .tokenizer = o.tokenizer};
  if (!o.dtype.empty()) options.dtype = kFloatTypes.at(o.dtype);
  if (o.shard_bytes > 0) options.max_shard_bytes = static_cast<int64_t>(o.shard_bytes);
  return options;
}

void refuse_hf_options(const ConvertArgs& o, const char* format) {
  for (const auto& [given, option] : {std::pair{!o.dtype.empty(), "--dtype"},
                                      {o.shard_bytes > 0, "--shard-size"},
                                      {!o.reference.empty(), "--reference"}})
    if (given)
      fail(ErrorKind::usage, option,
           "is of Hugging Face folders (--to hf); this one is written as {}", format);
}

/// A line where matrices of fewer bits are written as floats; write_hf_folder() has its own.
void say_widened(const convert::Checkpoint& checkpoint, bool to_gguf) {
  const std::string line = convert::widened_line(
      checkpoint.tensors,
      [&](const format::TensorView& t) { return to_gguf && convert::has_gguf_form(t); });
  if (!line.empty())
    fmt::print(stderr, "tessera: {}{}\n", line,
               to_gguf ? "; tessera quantize --requantize quantizes them again" : "");
}

/// Folders hold no blocks of a quantiser: only a GGUF file keeps those that a sum is rounded to.
convert::Checkpoint with_or_without_adapter(const ConvertArgs& o,
                                            convert::Checkpoint checkpoint,
                                            const TensorConverters& converters) {
  const convert::MergedAs as = o.float32        ? convert::MergedAs::float32
                               : o.to == "gguf" ? convert::MergedAs::own_type
                                                : convert::MergedAs::floats;
  const size_t known = checkpoint.remarks.size();
  const Merger& change = o.merge_adapter.empty() ? converters.unmerge : converters.merge;
  checkpoint =
      change(std::move(checkpoint), o.merge_adapter.empty() ? o.unmerge_adapter : o.merge_adapter,
             as, o.loading.options());
  for (size_t i = known; i < checkpoint.remarks.size(); ++i)
    fmt::print(stderr, "tessera: {}\n", checkpoint.remarks[i]);
  return checkpoint;
}

/// A folder of one format on top of the other would be read as neither.
void check_other_folder(const ConvertArgs& o,
                        const convert::Checkpoint& checkpoint,
                        const std::string& format) {
  std::error_code ignored;
  if (checkpoint.dialect == format || !std::filesystem::equivalent(o.model, o.out, ignored)) return;
  fail(ErrorKind::usage, "convert",
       "--out {} is the input folder, which is in {} format; expected another folder for the {} "
       "format",
       o.out, checkpoint.dialect == "hf" ? "Hugging Face" : checkpoint.dialect,
       format == "hf" ? "Hugging Face" : format);
}

int convert_model(const ConvertArgs& o, const TensorConverters& converters) {
  if (o.to == "gguf" && o.export_adapter.empty())
    check_gguf_place("convert", o.out, o.part_mib, o.force);
  else
    check_out_place("convert", o.out, o.force);
  convert::Checkpoint checkpoint = convert::load_checkpoint(o.model, o.loading.options());
  for (const std::string& note : checkpoint.notes) fmt::print(stderr, "tessera: {}\n", note);
  for (const std::string& remark : checkpoint.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  if (!o.export_adapter.empty()) {
    converters.export_adapter(o.export_adapter, checkpoint, o.out, o.loading.options());
    fmt::print(stderr, "tessera: wrote {} (an adapter)\n", o.out);
    return kExitOk;
  }
  if (!o.merge_adapter.empty() || !o.unmerge_adapter.empty())
    checkpoint = with_or_without_adapter(o, std::move(checkpoint), converters);
  if (!o.tokenizer.empty())
    convert::find_tokenizer(
        o.tokenizer, static_cast<int32_t>(checkpoint.spec.vocab));  // before anything is written
  const std::string tokenizer = !o.tokenizer.empty()  ? o.tokenizer
                                : checkpoint.of_bytes ? "bytes"
                                                      : o.model;
  checkpoint.of_bytes = tokenizer == "bytes";
  if (o.kv_heads > 0)
    checkpoint = convert::with_kv_heads(
        std::move(checkpoint), {.kv_heads = o.kv_heads, .pool = kPools.at(o.pool), .seed = o.seed});
  const convert::ExpertLoads use =
      o.use.empty() ? convert::ExpertLoads() : convert::read_expert_loads(o.use);
  if (o.upcycle > 0)
    checkpoint =
        convert::upcycled(std::move(checkpoint),
                          {.n_experts = o.upcycle, .k = o.k, .every = o.every, .seed = o.seed});
  if (o.keep_experts > 0)
    checkpoint = convert::pruned_experts(std::move(checkpoint), o.keep_experts, use);
  if (o.grow_experts > 0)
    checkpoint = convert::grown_experts(
        std::move(checkpoint), {.n_experts = o.grow_experts, .noise = o.noise, .seed = o.seed},
        use);
  if (o.merge_experts) checkpoint = convert::merged_experts(std::move(checkpoint), use);
  if (o.distill_experts)
    checkpoint = converters.distil(std::move(checkpoint), {.text = o.text,
                                                           .tokenizer = tokenizer,
                                                           .use = use,
                                                           .tokens = o.tokens,
                                                           .steps = o.steps,
                                                           .seed = o.seed});
  if (o.to == "gguf") {
    say_widened(checkpoint, true);
    refuse_hf_options(o, "gguf");
    convert::GgufModel model =
        convert::gguf_model_of(checkpoint, {o.loading.families, o.family, o.tokenizer});
    for (const std::string& remark : model.remarks) fmt::print(stderr, "tessera: {}\n", remark);
    if (!o.merge_adapter.empty())
      convert::set_settings_of_adapter(o.merge_adapter, checkpoint.spec.vocab, model);
    if (o.float32) convert::widen(model);
    for (const auto& file : convert::write_gguf_model(model, o.out, o.part_mib << 20))
      fmt::print(stderr, "tessera: wrote {}\n", file.string());
    return kExitOk;
  }
  // other heads, experts or numbers are no change of format: a Hugging Face folder stays one
  const bool stays = (o.kv_heads > 0 || o.keep_experts > 0 || o.grow_experts > 0 ||
                      !o.merge_adapter.empty() || !o.unmerge_adapter.empty()) &&
                     checkpoint.dialect == "hf";
  const bool to_hf = o.to == "hf" || (o.to.empty() && stays);
  if (!to_hf) refuse_hf_options(o, "tessera");
  check_other_folder(o, checkpoint, to_hf ? "hf" : "tessera");
  if (to_hf) {
    convert::HfOptions options = hf_options(o);
    convert::Checkpoint reference;
    if (!o.reference.empty()) {
      reference = convert::load_checkpoint(o.reference, o.loading.options());
      options.reference = &reference;
    }
    for (const std::string& line : convert::write_hf_folder(checkpoint, o.out, options))
      fmt::print(stderr, "tessera: {}\n", line);
  } else {
    say_widened(checkpoint, false);
    convert::write_tessera_folder(checkpoint, o.out);
    // a GGUF file carries its tokenizer in its metadata, and a folder of tessera's made of one has
    // it as it was
    const std::filesystem::path model =
        checkpoint.gguf != nullptr ? std::filesystem::path(o.model) : checkpoint.folder;
    const bool own = checkpoint.gguf != nullptr ||
                     (checkpoint.dialect == "tessera" && convert::holds_tokenizer(model));
    if (!o.tokenizer.empty() || own)
      convert::copy_tokenizer(o.tokenizer.empty() ? model : std::filesystem::path(o.tokenizer),
                              o.out);
  }
  if (!o.merge_adapter.empty())
    convert::write_settings_of_adapter(o.merge_adapter, checkpoint.spec.vocab, o.out);
  fmt::print(stderr, "tessera: wrote {} ({} tensors)\n", o.out, checkpoint.tensors.size());
  return kExitOk;
}

}  // namespace

std::function<int()> add_convert(CLI::App& app) {
  // main() has handed what needs one to the other program
  return add_convert(app, TensorConverters{});
}

std::function<int()> add_convert(CLI::App& app, TensorConverters converters) {
  auto o = std::make_shared<ConvertArgs>();
  group(app, "Input");
  add_model(app, o->model,
            "model: Hugging Face or tessera folder, GGUF, llama2.c or rwkv.cpp file, or run");
  group(app, "Output");
  add_out(app, o->out, "output folder, or file for gguf", "--outfile")->required();
  add_force(app, o->force);
  app.add_option(
         "--to", o->to,
         "output format; default gguf for an --out that ends in .gguf, else tessera, or for edited "
         "models (--kv-heads, --keep-experts, --grow-experts, --merge-adapter, --unmerge-adapter) "
         "the format of the input folder")
      ->check(CLI::IsMember({"tessera", "hf", "gguf"}));
  app.add_option("--part-mib", o->part_mib,
                 "split GGUF into shards of N MiB (NAME-00001-of-00003.gguf); 0 = one file")
      ->capture_default_str()
      ->check(not_negative());
  names_model(
      app.add_option("--tokenizer", o->tokenizer,
                     "tokenizer to write with the weights (llama2.c has it in a file of its own)"),
      o->tokenizer);
  app.add_option("--family", o->family, "model family to write as; default: the model's own");
  auto* float32 = app.add_flag("--float32", o->float32, "write float32 weights");
  app.add_option("--dtype", o->dtype,
                 "type of all weights of a Hugging Face folder: float32, bfloat16 or float16; "
                 "default: as they are, quantized ones as float32")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->excludes(float32);
  app.add_option("--shard-size", o->shard_bytes,
                 "split the weights of a Hugging Face folder into files of at most this size "
                 "(500MB, 5GB; KiB, MiB and GiB are powers of 1024); default 5GiB")
      ->transform(CLI::AsSizeValue(true))
      ->check(positive());
  names_model(app.add_option("--reference", o->reference,
                             "model before quantization: the model card of a Hugging Face folder "
                             "gets the error of the weights relative to it"),
              o->reference);
  group(app, "Attention heads");
  app.add_option(
         "--kv-heads", o->kv_heads,
         "convert MHA to GQA with G KV heads (1 = MQA), a divisor of their number; train on "
         "for about 5 % of the original steps")
      ->check(positive());
  app.add_option("--pool", o->pool, "how heads are pooled: mean or first of a group, or random")
      ->capture_default_str()
      ->check(CLI::IsMember({"mean", "first", "random"}))
      ->needs("--kv-heads");
  auto* drawn = app.add_option("--seed,-s", o->seed,
                               "random seed of --pool random, --upcycle, --grow-experts and "
                               "--distill-experts")
                    ->check(seed());
  group(app, "Mixture of experts");
  auto* upcycle = app.add_option("--upcycle", o->upcycle,
                                 "sparse upcycling: E experts, copies of each feed-forward layer")
                      ->check(positive());
  app.add_option("--experts-per-token", o->k, "active experts per token")
      ->capture_default_str()
      ->needs(upcycle)
      ->check(positive());
  app.add_option("--upcycle-every", o->every, "upcycle every n-th layer only")
      ->capture_default_str()
      ->needs(upcycle)
      ->check(positive());
  auto* keep =
      app.add_option("--keep-experts", o->keep_experts, "expert pruning: keep the N most used")
          ->excludes(upcycle)
          ->check(positive());
  auto* use = app.add_option("--expert-use", o->use,
                             "expert usage file: output of generate --json, or a run's log.jsonl");
  keep->needs(use);
  auto* grow = app.add_option("--grow-experts", o->grow_experts,
                              "grow to N experts by copies of the most used")
                   ->excludes(upcycle)
                   ->excludes(keep)
                   ->needs(use)
                   ->check(positive());
  app.add_option("--noise", o->noise, "noise of a copy, relative to its size")
      ->capture_default_str()
      ->needs(grow)
      ->check(not_negative());
  auto* merge =
      app.add_flag("--merge-experts", o->merge_experts,
                   "merge each mixture into one dense layer: mean weighted by --expert-use")
          ->excludes(upcycle)
          ->excludes(keep)
          ->excludes(grow);
  auto* distill = app.add_flag(kDistillExperts, o->distill_experts,
                               "merge, then fit each layer to the mixture's output on --text")
                      ->excludes(upcycle)
                      ->excludes(keep)
                      ->excludes(grow)
                      ->excludes(merge);
  auto* text = app.add_option("--text", o->text, "text of --distill-experts; - = standard input")
                   ->needs(distill);
  distill->needs(text);
  app.add_option("--distill-tokens", o->tokens, "maximum tokens of the text")
      ->capture_default_str()
      ->needs(distill)
      ->check(positive());
  app.add_option("--distill-steps", o->steps, "steps per layer")
      ->capture_default_str()
      ->needs(distill)
      ->check(positive());
  group(app, "Adapters");
  auto* merge_adapter = app.add_option(
      kMergeAdapter, o->merge_adapter,
      "merge a LoRA adapter into the weights; quantized ones become float32, or with --to "
      "gguf are rounded to their type again");
  auto* unmerge_adapter = app.add_option(kUnmergeAdapter, o->unmerge_adapter,
                                         "subtract a merged adapter again (to rounding)")
                              ->excludes(merge_adapter);
  auto* export_adapter =
      app.add_option(kExportAdapter, o->export_adapter, "write only the adapter, as a PEFT folder")
          ->excludes(merge_adapter)
          ->excludes(unmerge_adapter);
  names_model(merge_adapter, o->merge_adapter);
  names_model(unmerge_adapter, o->unmerge_adapter);
  names_model(export_adapter, o->export_adapter);
  group(app, "Input");
  o->loading.add(app);
  examples(app,
           {"tessera convert stories260K.bin --tokenizer tok512.bin --out stories",
            "tessera convert model.gguf --to hf --out folder",
            "tessera convert model.Q4_K_M.gguf --reference org/name --to hf --out folder",
            "tessera convert SmolLM2-135M --to gguf --out smol.gguf",
            "tessera convert Llama-2-7b --kv-heads 8 --out llama-gqa",
            "tessera convert SmolLM2-135M --upcycle 8 --experts-per-token 2 --out smol-experts",
            "tessera generate mixtral --prompt 'A text' --json > use.json; tessera convert "
            "mixtral --keep-experts 6 --expert-use use.json --out mixtral-6",
            "tessera convert mixtral --distill-experts --text text.txt --out dense",
            "tessera convert SmolLM2-135M --merge-adapter run/latest --out tuned",
            "tessera convert tuned --unmerge-adapter run/latest --out SmolLM2-135M-again",
            "tessera convert SmolLM2-135M --export-adapter run/latest --out adapter"});
  return [=] {
    if (!drawn->empty() && o->pool != "random" && upcycle->empty() && grow->empty() &&
        distill->empty())
      fail(ErrorKind::usage, "convert",
           "--seed has no effect without random numbers; expected --pool random, --upcycle, "
           "--grow-experts or "
           "--distill-experts");
    if (!use->empty() && keep->empty() && grow->empty() && merge->empty() && distill->empty())
      fail(ErrorKind::usage, "convert",
           "--expert-use has no effect alone; expected --keep-experts, --grow-experts, "
           "--merge-experts or --distill-experts");
    if (o->to.empty() && o->export_adapter.empty() &&
        std::filesystem::path(o->out).extension() == ".gguf")
      o->to = "gguf";
    return convert_model(*o, converters);
  };
}

}  // namespace tessera::cli
