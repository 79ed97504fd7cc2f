#include <filesystem>

#include "tessera/base/output_file.h"
#include "tessera/base/rng.h"
#include "tessera/base/temporary_folder.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/train/data/image_files.h"
#include "tessera/train/data/listops.h"
#include "tessera/train/data/pathfinder.h"
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
  // --generate
  std::string task, out, level = "easy";
  int64_t examples = 20000, held_out = 2000, size = 32;
  uint64_t seed = 0;
  train::ListOpsOptions listops;
};

/// The files of a generated data set: number of examples, and what its names have in Long Range
/// Arena.
struct GeneratedSplit {
  const char* name;
  int64_t begin, n;
};
std::vector<GeneratedSplit> splits_of(const DataArgs& o) {
  return {{"train", 0, o.examples},
          {"val", o.examples, o.held_out},
          {"test", o.examples + o.held_out, o.held_out}};
}

void write_listops(const DataArgs& o, Json& report) {
  int64_t draws = 0;
  const std::vector<train::ListOpsTree> trees =
      train::make_listops(o.listops, o.examples + 2 * o.held_out, o.seed, &draws, &cancel_token());
  for (const GeneratedSplit& split : splits_of(o)) {
    if (split.n == 0) continue;
    std::string text = "Source\tTarget\n";
    std::vector<std::string> symbols;
    std::vector<int64_t> values;
    for (int64_t i = split.begin; i < split.begin + split.n; ++i) {
      const train::ListOpsTree& tree = trees[static_cast<size_t>(i)];
      text += fmt::format("{}\t{}\n", tree.source, tree.value);
      symbols.push_back(train::listops_symbols(tree.source, split.name));
      values.push_back(tree.value);
    }
    const fs::path path = fs::path(o.out) / fmt::format("basic_{}.tsv", split.name);
    write_file_atomically(path, text);
    const train::ListOpsBaselines baselines = train::listops_baselines(symbols, values);
    report["files"].push_back(
        {{"data", path.string()},
         {"examples", split.n},
         {"mean_length", baselines.mean_length},
         {"baselines",
          {{"majority", baselines.majority}, {"root_operator", baselines.root_operator}}}});
  }
  report["kept"] = static_cast<double>(trees.size()) / static_cast<double>(draws);
}

void write_pathfinder(const DataArgs& o, Json& report) {
  const auto options = train::PathfinderOptions::of_level(o.level, o.size);
  const RandomKey key = RandomKey(o.seed).fold("pathfinder");
  for (const GeneratedSplit& split : splits_of(o)) {
    if (split.n == 0) continue;
    std::vector<std::vector<uint8_t>> images;
    std::vector<int64_t> labels;
    int64_t connected = 0;
    for (int64_t i = split.begin; i < split.begin + split.n; ++i) {
      cancel_token().check("data");
      train::PathfinderImage image =
          train::make_pathfinder(options, key.fold(static_cast<uint64_t>(i)));
      images.push_back(std::move(image.pixels));
      labels.push_back(image.connected ? 1 : 0);
      connected += labels.back();
    }
    const fs::path folder = o.out;
    const fs::path data = folder / fmt::format("{}-images-idx3-ubyte", split.name),
                   own = folder / fmt::format("{}-labels-idx1-ubyte", split.name);
    write_file_atomically(data, train::idx_images(images, o.size));
    write_file_atomically(own, train::idx_labels(labels));
    report["files"].push_back({{"data", data.string()},
                               {"labels", own.string()},
                               {"examples", split.n},
                               {"connected", connected}});
  }
}

int generate_data(const DataArgs& o) {
  if (o.out.empty())
    fail(ErrorKind::usage, "data", "--generate {} without a folder; expected --out FOLDER", o.task);
  Json report = {{"task", o.task}, {"seed", o.seed}, {"files", Json::array()}};
  fs::create_directories(o.out);
  if (o.task == "listops")
    write_listops(o, report);
  else
    write_pathfinder(o, report);
  if (o.json) {
    print_json(report);
    return kExitOk;
  }
  for (const Json& file : report["files"]) {
    fmt::print("{}: {} examples", file["data"].get<std::string>(), file["examples"].get<int64_t>());
    if (file.contains("baselines"))
      fmt::print(
          ", mean length {:.1f}; accuracy of the majority class {:.3f}, of the root operator "
          "alone {:.3f}",
          file["mean_length"].get<double>(), file["baselines"]["majority"].get<double>(),
          file["baselines"]["root_operator"].get<double>());
    else
      fmt::print(", {} connected; labels: {}", file["connected"].get<int64_t>(),
                 file["labels"].get<std::string>());
    fmt::print("\n");
  }
  return kExitOk;
}

int show_data(const DataArgs& o) {
  const train::Recipe recipe = train::load_recipe(o.recipe, o.overrides, o.ignore_keys);
  for (const std::string& note : recipe.notes) fmt::print(stderr, "tessera: {}\n", note);
  std::optional<TemporaryFolder> own;
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
  auto* recipe = app.add_option("recipe", o->recipe, "training recipe (JSON)");
  add_overrides(app, o->overrides, "recipe");
  add_ignore_key(app, o->ignore_keys);
  group(app, "Samples");
  app.add_option("--samples,-n", o->samples, "number of samples to show")->check(positive());
  app.add_option("--first", o->first, "number of the first sample")->check(not_negative());
  app.add_flag("--valid", o->valid, "validation samples instead");
  app.add_option(
      "--cache", o->cache,
      "token cache to read: RUN/cache of a run; without it the texts are tokenized again");
  group(app, "Generated data sets (Long Range Arena)");
  auto* made = app.add_option("--generate", o->task,
                              "instead of a preview: write files of this task: listops (TSV) or "
                              "pathfinder (images in IDX format)")
                   ->check(CLI::IsMember({"listops", "pathfinder"}))
                   ->excludes(recipe);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str()->needs(made);
  };
  add_out(app, o->out, "folder of the files")->needs(made);
  add("--examples", o->examples, "training examples")->check(positive());
  add("--held-out", o->held_out, "validation examples, and as many test examples")
      ->check(not_negative());
  add("--seed,-s", o->seed, "random seed")->check(seed());
  add("--max-depth", o->listops.max_depth, "listops: operators are at depths below this one")
      ->check(positive());
  add("--max-args", o->listops.max_args, "listops: most arguments of an operator")
      ->check(positive());
  add("--min-length", o->listops.min_length, "listops: trees have more tokens than this")
      ->check(not_negative());
  add("--max-length", o->listops.max_length, "listops: trees have fewer tokens than this")
      ->check(positive());
  add("--level", o->level, "pathfinder: easy, medium or hard")
      ->check(CLI::IsMember({"easy", "medium", "hard"}));
  add("--size", o->size, "pathfinder: pixels of a side")->check(positive());
  group(app, "Output");
  app.add_flag("--json", o->json, "ids, tokens and targets, or the files written, as JSON");
  examples(app,
           {"tessera data recipe.json", "tessera data recipe.json --samples 1 --first 1000 --json",
            "tessera data recipe.json --valid --set objective.rate=0.3",
            "tessera data --generate listops --out listops --examples 96000",
            "tessera data --generate pathfinder --level hard --out pathfinder"});
  return [o, made] {
    if (made->count() > 0) return generate_data(*o);
    if (o->recipe.empty())
      fail(ErrorKind::usage, "data", "no recipe; expected RECIPE, or --generate TASK");
    return show_data(*o);
  };
}

}  // namespace tessera::cli
