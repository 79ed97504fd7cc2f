#include <filesystem>

#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/temporary_cache.h"
#include "tessera/train/data/sample_view.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct DataArgs {
  std::string recipe, cache;
  std::vector<std::string> overrides, ignore_keys;
  int64_t first = 0, samples = 2;
  bool valid = false, json = false;
};

int show_data(const DataArgs& o) {
  const train::Recipe recipe = train::load_recipe(o.recipe, o.overrides, o.ignore_keys);
  for (const std::string& note : recipe.notes) fmt::print(stderr, "tessera: {}\n", note);
  std::optional<TemporaryCache> own;
  const fs::path cache = o.cache.empty() ? own.emplace().path() : fs::path(o.cache);
  const auto source = train::open_source(recipe, cache, &cancel_token());
  std::optional<text::Tokenizer> known;
  if (recipe.data.task() == nullptr) known = train::open_tokenizer(recipe.data);
  const text::Tokenizer* tokenizer = known ? &*known : nullptr;
  for (const std::string& note : source->notes()) fmt::print(stderr, "tessera: {}\n", note);
  const int64_t held_out = source->valid_samples();
  int64_t count = o.samples;
  if (o.valid) {
    if (o.first >= held_out)
      fail(ErrorKind::usage, "data", "--first {}: there are {} validation samples", o.first,
           held_out);
    count = std::min(count, held_out - o.first);
  }
  Json out = {{"valid_samples", held_out}, {"samples", Json::array()}};
  if (!o.json)
    fmt::print("{} samples per step, {} validation samples\n",
               recipe.train.batch * recipe.train.accumulate, held_out);
  for (int64_t number = o.first; number < o.first + count; ++number) {
    std::vector<int64_t> begun;
    const train::PackedBatch batch =
        o.valid ? source->valid({number}) : source->train(number, 1, begun);
    Json documents = Json::array();
    if (!o.json)
      fmt::print("\nsample {}: {} tokens in {} document{}, {} targets\n", number, batch.ids.size(),
                 batch.pieces.size(), batch.pieces.size() == 1 ? "" : "s", batch.n_targets);
    for (size_t i = 0; i < batch.pieces.size(); ++i) {
      if (o.json)
        documents.push_back(train::view_of(batch, i, tokenizer, recipe.data.labels() != nullptr));
      else
        for (const std::string& line :
             train::lines_of(batch, i, tokenizer, recipe.data.labels() != nullptr))
          fmt::print("{}\n", line);
    }
    out["samples"].push_back(
        {{"sample", number}, {"targets", batch.n_targets}, {"documents", std::move(documents)}});
  }
  if (o.json) print_json(out);
  return kExitOk;
}

}  // namespace

std::function<int()> add_data(CLI::App& app) {
  auto o = std::make_shared<DataArgs>();
  group(app, "Input");
  app.add_option("recipe", o->recipe, "training recipe (JSON)")->required();
  add_overrides(app, o->overrides, "recipe");
  add_ignore_key(app, o->ignore_keys);
  group(app, "Samples");
  app.add_option("--samples,-n", o->samples, "number of samples to show")->check(positive());
  app.add_option("--first", o->first, "number of the first sample")->check(not_negative());
  app.add_flag("--valid", o->valid, "validation samples instead");
  app.add_option(
      "--cache", o->cache,
      "token cache to read: RUN/cache of a run; without it the texts are tokenized again");
  group(app, "Output");
  app.add_flag("--json", o->json, "ids, tokens and targets as JSON");
  examples(app,
           {"tessera data recipe.json", "tessera data recipe.json --samples 1 --first 1000 --json",
            "tessera data recipe.json --valid --set objective.rate=0.3"});
  return [o] { return show_data(*o); };
}

}  // namespace tessera::cli
