#include "tessera/cli/convert.h"

#include "tessera/cli/cli.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/kv_heads.h"
#include "tessera/convert/tokenizer.h"

namespace tessera::cli {
namespace {

const std::map<std::string, convert::PoolHeads> kPools = {{"mean", convert::PoolHeads::mean},
                                                          {"first", convert::PoolHeads::first},
                                                          {"random", convert::PoolHeads::random}};

struct ConvertArgs {
  std::string model, out, to, tokenizer, families, family, pool = "mean";
  std::string use, text, merge_adapter, unmerge_adapter, export_adapter;
  int64_t kv_heads = 0, upcycle = 0, k = 2, every = 1, keep_experts = 0, grow_experts = 0;
  int64_t steps = 500, tokens = 16384, part_mib = 0;
  double noise = 0.01;
  bool merge_experts = false, distill_experts = false;
  uint64_t seed = 0;
  bool float32 = false;
};

/// A line where matrices of fewer bits are written as floats.
void say_widened(const convert::Checkpoint& checkpoint, bool to_gguf) {
  int64_t bytes = 0, wide = 0;
  for (const format::TensorView& tensor : checkpoint.tensors)
    if (is_block_type(tensor.dtype) && !(to_gguf && convert::has_gguf_form(tensor))) {
      bytes += std::ssize(tensor.data);
      wide += format::element_count(tensor.shape) * 4;
    }
  if (wide > 0)
    fmt::print(stderr, "tessera: matrices of fewer bits are written as float32: {} MiB of {}{}\n",
               wide >> 20, bytes >> 20,
               to_gguf ? "; tessera quantize --requantize makes them small again" : "");
}

int convert_model(const ConvertArgs& o, const TensorConverters& converters) {
  convert::Checkpoint checkpoint = convert::load_checkpoint(o.model, {o.families});
  for (const std::string& note : checkpoint.notes) fmt::print(stderr, "tessera: {}\n", note);
  for (const std::string& remark : checkpoint.remarks) fmt::print(stderr, "tessera: {}\n", remark);
  if (!o.export_adapter.empty()) {
    converters.export_adapter(o.export_adapter, checkpoint, o.out, {o.families});
    fmt::print(stderr, "tessera: wrote {} (an adapter)\n", o.out);
    return kExitOk;
  }
  if (!o.merge_adapter.empty())
    checkpoint = converters.merge(std::move(checkpoint), o.merge_adapter, o.float32, {o.families});
  if (!o.unmerge_adapter.empty())
    checkpoint =
        converters.unmerge(std::move(checkpoint), o.unmerge_adapter, o.float32, {o.families});
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
  say_widened(checkpoint, o.to == "gguf");
  if (o.to == "gguf") {
    convert::GgufModel model =
        convert::gguf_model_of(checkpoint, {o.families, o.family, o.tokenizer});
    for (const std::string& remark : model.remarks) fmt::print(stderr, "tessera: {}\n", remark);
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
  if (to_hf) {
    convert::write_hf_folder(checkpoint, o.out,
                             {.family = o.family, .families = o.families, .float32 = o.float32});
  } else {
    convert::write_tessera_folder(checkpoint, o.out);
  }
  // a GGUF file carries its tokenizer in its metadata, and a folder of tessera's made of one has it
  // as it was
  const bool own = checkpoint.gguf != nullptr ||
                   (checkpoint.dialect == "tessera" && convert::holds_tokenizer(o.model));
  if (const std::string& from = o.tokenizer.empty() ? o.model : o.tokenizer;
      !o.tokenizer.empty() || own) {
    if (!to_hf)
      convert::copy_tokenizer(from, o.out);
    else if (const std::string why = convert::copy_tokenizer_to_hf(from, o.out); !why.empty())
      fmt::print(
          stderr,
          "tessera: the tokenizer stays tokenizer.gguf, which other programs do not read: {}\n",
          why);
  }
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
  app.add_option("model", o->model,
                 "a Hugging Face or tessera folder, or a file of GGUF, llama2.c or rwkv.cpp")
      ->required();
  app.add_option("--out", o->out, "the folder to write, or with --to gguf the file")->required();
  app.add_option("--to", o->to,
                 "what to write; default tessera, or with --kv-heads, --keep-experts, "
                 "--grow-experts, --merge-adapter and --unmerge-adapter what the folder is")
      ->check(CLI::IsMember({"tessera", "hf", "gguf"}));
  app.add_option("--part-mib", o->part_mib,
                 "with --to gguf: files of at most so many MiB, NAME-00001-of-00003.gguf; 0 = one")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--tokenizer", o->tokenizer,
                 "tokenizer to put beside the weights (llama2.c keeps it apart)");
  app.add_option("--family", o->family, "the family to write as, where it is not the model's own");
  app.add_option("--families", o->families, "a folder of further family files");
  app.add_option("--kv-heads", o->kv_heads,
                 "pool the key/value heads of attention to so many (1 = multi-query); divides the "
                 "present number. A start for training on: about 5 % of the original steps")
      ->check(positive());
  app.add_option("--pool", o->pool, "with --kv-heads: the mean or first of a group, or drawn anew")
      ->capture_default_str()
      ->check(CLI::IsMember({"mean", "first", "random"}))
      ->needs("--kv-heads");
  auto* drawn =
      app.add_option("--seed", o->seed,
                     "of --pool random, the routers of --upcycle, the noise of --grow-experts and "
                     "the rows of --distill-experts")
          ->check(seed());
  auto* upcycle =
      app.add_option(
             "--upcycle", o->upcycle,
             "so many copies of every feed-forward layer as experts, and a fresh router: the "
             "same function, to be trained on")
          ->check(positive());
  app.add_option("--experts-per-token", o->k, "with --upcycle: experts that a token uses")
      ->capture_default_str()
      ->needs(upcycle)
      ->check(positive());
  app.add_option("--upcycle-every", o->every, "with --upcycle: in every so many layers alone")
      ->capture_default_str()
      ->needs(upcycle)
      ->check(positive());
  auto* keep = app.add_option("--keep-experts", o->keep_experts,
                              "only so many experts of every mixture, the most used ones")
                   ->excludes(upcycle)
                   ->check(positive());
  auto* use =
      app.add_option("--expert-use", o->use,
                     "how experts are used: what generate --json has printed, or a log.jsonl");
  keep->needs(use);
  auto* grow = app.add_option("--grow-experts", o->grow_experts,
                              "so many experts in every mixture: those there are, and copies of "
                              "the most used ones")
                   ->excludes(upcycle)
                   ->excludes(keep)
                   ->needs(use)
                   ->check(positive());
  app.add_option("--noise", o->noise,
                 "with --grow-experts: what tells a copy from its original, of its size")
      ->capture_default_str()
      ->needs(grow)
      ->check(not_negative());
  auto* merge =
      app.add_flag(
             "--merge-experts", o->merge_experts,
             "one dense layer of every mixture: the mean of its experts, weighted by --expert-use")
          ->excludes(upcycle)
          ->excludes(keep)
          ->excludes(grow);
  auto* distill =
      app.add_flag(kDistillExperts, o->distill_experts,
                   "the same, then fitted layer by layer to what the mixtures make of --text")
          ->excludes(upcycle)
          ->excludes(keep)
          ->excludes(grow)
          ->excludes(merge);
  auto* text =
      app.add_option("--text", o->text, "with --distill-experts: a file, or - for standard input")
          ->needs(distill);
  distill->needs(text);
  app.add_option("--distill-tokens", o->tokens,
                 "with --distill-experts: tokens of the text at most")
      ->capture_default_str()
      ->needs(distill)
      ->check(positive());
  app.add_option("--distill-steps", o->steps, "with --distill-experts: steps for every layer")
      ->capture_default_str()
      ->needs(distill)
      ->check(positive());
  auto* merge_adapter =
      app.add_option(kMergeAdapter, o->merge_adapter,
                     "the model with this adapter in its weights, which are floats");
  auto* unmerge_adapter =
      app.add_option(kUnmergeAdapter, o->unmerge_adapter,
                     "the way back, to rounding: the model without this adapter, which was merged")
          ->excludes(merge_adapter);
  app.add_option(kExportAdapter, o->export_adapter,
                 "only this adapter, as PEFT reads it beside the model's Hugging Face folder")
      ->excludes(merge_adapter)
      ->excludes(unmerge_adapter);
  app.add_flag("--float32", o->float32, "write float32 whatever the storage type");
  examples(app,
           {"tessera convert stories260K.bin --tokenizer tok512.bin --out stories",
            "tessera convert model.gguf --to hf --out folder",
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
           "--seed with nothing to draw; expected --pool random, --upcycle, --grow-experts or "
           "--distill-experts");
    if (!use->empty() && keep->empty() && grow->empty() && merge->empty() && distill->empty())
      fail(ErrorKind::usage, "convert",
           "--expert-use with nothing that reads it; expected --keep-experts, --grow-experts, "
           "--merge-experts or --distill-experts");
    return convert_model(*o, converters);
  };
}

}  // namespace tessera::cli
