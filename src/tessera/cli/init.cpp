#include <filesystem>

#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/out_place.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/model/model.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct InitArgs {
  std::string spec, out, tokenizer;
  LoadFlags loading;
  std::vector<std::string> overrides;
  int64_t seed = 0;
  bool force = false;
};

/// A vocabulary of bytes with room for a few tokens more takes the tokenizer of bytes.
std::string tokenizer_for(const InitArgs& o, const model::ModelSpec& spec) {
  if (!o.tokenizer.empty()) return o.tokenizer;
  constexpr int64_t kBytes = 256, kMore = 16;
  return spec.vocab >= kBytes && spec.vocab <= kBytes + kMore ? "bytes" : "";
}

std::vector<format::TensorView> views_of(const model::Weights& weights) {
  std::vector<format::TensorView> views;
  for (const auto& [decl, weight] : weights.all())
    views.push_back(
        {decl.name,
         weight->dtype(),
         weight->shape(),
         {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())},
         weight});
  return views;
}

int init(const InitArgs& o) {
  const fs::path out = o.out;
  check_out_place("init", out, o.force);
  const model::ModelSpec spec = spec_of(o.spec, o.overrides, o.loading.options());
  const std::string tokenizer = tokenizer_for(o, spec);
  // read before anything is written
  if (!tokenizer.empty()) convert::find_tokenizer(tokenizer, static_cast<int32_t>(spec.vocab));
  const model::Weights weights = model::Weights::initial(spec, static_cast<uint64_t>(o.seed));
  convert::TesseraFolderOptions how;
  if (tokenizer == "bytes") how.metadata["tessera_tokenizer"] = tokenizer;
  convert::write_tessera_folder(model::resolve(spec), views_of(weights), out, how);
  if (!tokenizer.empty() && tokenizer != "bytes") convert::copy_tokenizer(tokenizer, out);
  int64_t parameters = 0;
  for (const auto& [decl, weight] : weights.all()) parameters += decl.elements();
  fmt::print("{}: {} parameters, seed {}{}\n", o.out, parameters, o.seed,
             tokenizer.empty() ? ", no tokenizer (--tokenizer)" : ", tokenizer " + tokenizer);
  return kExitOk;
}

}  // namespace

std::function<int()> add_init(CLI::App& app) {
  auto o = std::make_shared<InitArgs>();
  group(app, "Input");
  names_model(
      app.add_option("spec", o->spec, "spec or recipe file, or a model whose architecture is used")
          ->required(),
      o->spec);
  add_overrides(app, o->overrides, "spec");
  o->loading.add(app);
  group(app, "Weight initialization");
  app.add_option(
         "--seed,-s", o->seed,
         "random seed of the initial weights; train.seed of a recipe gives the same weights")
      ->capture_default_str()
      ->check(seed());
  group(app, "Output");
  add_out(app, o->out, "folder of the new checkpoint")->required();
  add_force(app, o->force);
  names_model(
      app.add_option(
          "--tokenizer", o->tokenizer,
          "\"bytes\", or a tokenizer.json or vocab.txt, or its folder; default: bytes, where "
          "the vocabulary is 256 to 272"),
      o->tokenizer);
  examples(app, {"tessera init zoo/llama/smollm2-135m.json --seed 0 --out fresh",
                 "tessera init spec.json --set d_model=256 --out small",
                 "tessera verify fresh --text examples/data/shakespeare.txt"});
  return [o] { return init(*o); };
}

}  // namespace tessera::cli
