#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/train_progress.h"
#include "tessera/train/finetune.h"
#include "tessera/train/trainer.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct FinetuneArgs {
  train::FinetuneOptions how;
  std::string out;
  std::vector<std::string> overrides;
  bool lora = false, recipe = false, resume = false, json = false;
  int threads = 0;
};

/// The recipe beside which a run stands; written anew where there is none, or it is another.
fs::path write_recipe(const FinetuneArgs& o, const Json& recipe) {
  const fs::path file = fs::path(o.out) / "finetune.json";
  write_file_atomically(file, recipe.dump(2) + "\n");
  return file;
}

int finetune(const FinetuneArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  train::FinetunePlan plan = train::plan_finetune(o.how);
  for (const std::string& assignment : o.overrides) model::apply_override(plan.recipe, assignment);
  for (const std::string& line : plan.said) fmt::print(stderr, "tessera: {}\n", line);
  if (o.recipe) {
    fmt::print("{}\n", plan.recipe.dump(2));
    return kExitOk;
  }
  // read before there is a folder: what does not fit is said first
  train::Recipe recipe = train::read_recipe(plan.recipe, "");
  for (const std::string& note : recipe.notes) fmt::print(stderr, "tessera: {}\n", note);
  TrainProgress progress(unit_of(recipe));
  train::TrainOptions options;
  options.resume = o.resume;
  options.cancel = &cancel_token();
  options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  options.on_start = [](const std::string& line) { fmt::print(stderr, "tessera: {}\n", line); };
  fs::path file;
  options.on_begin = [&] {
    file = write_recipe(o, plan.recipe);
    fmt::print(stderr, "tessera: the recipe is {} (tessera train RECIPE --out RUN)\n",
               file.string());
  };
  const train::TrainResult result = train::train(recipe, o.out, options);
  const bool labelled = recipe.labels.has_value(), adapts = recipe.adapter.has_value();
  const std::string verb = labelled                                   ? "classify"
                           : plan.task == "together"                  ? "embed"
                           : recipe.spec.arch != model::Arch::encoder ? "generate"
                                                                      : "eval";
  const std::string model = adapts ? fmt::format("{} --adapter {}", o.how.model, o.out)
                                   : (fs::path(o.out) / "latest").string();
  Json json = {{"checkpoint", result.checkpoint.string()},
               {"recipe", file.string()},
               {"task", plan.task},
               {"seconds", result.seconds}};
  if (result.last && result.last->valid_loss) {
    json["valid_loss"] = *result.last->valid_loss;
    if (result.last->accuracy) json["scores"]["accuracy"] = *result.last->accuracy;
    for (const auto& [name, score] : result.last->scores) json["scores"][name] = score;
  }
  if (o.json) {
    print_json(json);
    return kExitOk;
  }
  if (json.contains("valid_loss"))
    fmt::print("{:<18}{:.4f}\n", "held-out loss", json["valid_loss"].get<double>());
  if (json.contains("scores"))
    for (const auto& [name, score] : json["scores"].items())
      fmt::print("{:<18}{:.4f}\n", name, score.get<double>());
  fmt::print("{:<18}{}\n", "model", result.checkpoint.string());
  fmt::print("{:<18}tessera {} {}\n", "try it", verb, model);
  return kExitOk;
}

}  // namespace

std::function<int()> add_finetune(CLI::App& app) {
  auto o = std::make_shared<FinetuneArgs>();
  train::FinetuneOptions& how = o->how;
  app.add_option("model", how.model,
                 "what to begin from: a Hugging Face folder, a GGUF file, a run's folder")
      ->required();
  app.add_option("--data", how.data,
                 "files to learn from: .tsv, .csv, .jsonl, .json (SQuAD too), .conll, .txt")
      ->required();
  app.add_option("--valid", how.valid, "files to be measured on; default: a tenth of --data");
  app.add_option("--labels", how.labels, "files with a label a line, for .txt files of --data");
  auto* out = app.add_option("--out", o->out, "the run's folder; needed unless --recipe");
  std::string tasks;
  for (const auto& [name, what] : train::finetune_tasks())
    tasks += fmt::format("{}{} ({})", tasks.empty() ? "" : "; ", name, what);
  app.add_option("--task", how.task,
                 "what is learned; default: guessed from the columns. " + tasks);
  app.add_option("--format", how.format, "of --data; default: by the end of its name")
      ->check(CLI::IsMember({"tsv", "csv", "jsonl", "lines", "conll", "squad"}));
  app.add_option("--columns", how.columns,
                 "names of the columns, with commas, where the first line holds none")
      ->delimiter(',');
  app.add_option("--separator", how.separator, "between columns; default: tab, comma");
  app.add_option("--text", how.text, "the column or key of the text");
  app.add_option("--text-b", how.text_b, "of the second text of a pair");
  app.add_option("--label", how.label, "of the label, or the number");
  auto* lora = app.add_option("--lora", how.rank,
                              "train an adapter of this rank beside the model, which stays as it "
                              "is stored (LoRA)");
  auto* adapter = app.add_option("--adapter", how.adapter, "train another adapter beside it")
                      ->check(CLI::IsMember({"lora", "dora", "ia3", "prefix", "prompt"}));
  auto* last = app.add_option("--last", how.last, "train the last N layers and the head alone");
  auto* head = app.add_flag("--head-only", how.head_only, "train the head alone");
  lora->check(positive())->excludes(adapter)->excludes(last)->excludes(head);
  last->check(positive())->excludes(adapter)->excludes(head);
  head->excludes(adapter);
  app.add_option("--lr", how.lr, "rate of learning")->check(positive());
  app.add_option("--epochs", how.epochs, "times through the data")->check(positive());
  app.add_option("--steps", how.steps, "updates; default: by --epochs")->check(positive());
  app.add_option("--batch", how.batch, "examples of an update")->check(positive());
  app.add_option("--length", how.length, "longest text, in tokens")->check(positive());
  app.add_option("--valid-fraction", how.valid_fraction, "share held out without --valid; 0 = none")
      ->check(fraction());
  app.add_option("--seed", how.seed, "of new values and the order of the examples")->check(seed());
  app.add_option("--set", o->overrides, "path.to.key=value, changes the recipe");
  app.add_flag("--recipe", o->recipe, "print the recipe that it makes, and train nothing");
  app.add_flag("--resume", o->resume, "go on from the newest checkpoint of --out");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_flag("--json", o->json, "the result as JSON");
  examples(app,
           {"tessera finetune all-MiniLM-L6-v2 --data train.tsv --valid dev.tsv --out run",
            "tessera finetune model --data reviews.csv --text review --label stars --out run",
            "tessera finetune model.gguf --data chats.jsonl --lora 8 --out run",
            "tessera finetune model --data sst2.txt --columns label,text --separator ' ' --out run",
            "tessera finetune model --data train.jsonl --recipe > recipe.json"});
  return [o, out, lora] {
    if (lora->count() > 0) o->how.adapter = "lora";
    if (out->count() == 0 && !o->recipe)
      fail(ErrorKind::usage, "finetune",
           "no place for the run; expected --out FOLDER, or --recipe");
    o->how.cancel = &cancel_token();
    return finetune(*o);
  };
}

}  // namespace tessera::cli
