#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/fit.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/recipe_flags.h"
#include "tessera/cli/train_progress.h"
#include "tessera/train/data/label_benchmarks.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/recipe/finetune.h"
#include "tessera/train/runs/run_report.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct FinetuneArgs {
  DeviceFlag device;
  train::FinetuneOptions how;
  std::string out;
  std::vector<std::string> overrides;
  double alpha = 0;
  bool recipe = false, resume = false, json = false, force = false;
  int threads = 0;
};

/// Writes the recipe into the run's folder.
fs::path write_recipe(const FinetuneArgs& o, const Json& recipe) {
  const fs::path file = fs::path(o.out) / "finetune.json";
  write_file_atomically(file, recipe.dump(2) + "\n");
  return file;
}

/// The scores of an evaluation of a run.
Json scores_of(const train::LogLine& line) {
  Json json = {{"step", line.step}, {"valid_loss", *line.valid_loss}};
  if (line.accuracy) json["scores"]["accuracy"] = *line.accuracy;
  for (const auto& [name, score] : line.scores) json["scores"][name] = score;
  return json;
}

/// A word of a command, in quotes where a shell would read it otherwise.
std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("/._-+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// A verb that uses what was learned, and an input for it.
struct Trial {
  std::string verb, input;
};
Trial trial_of(const FinetuneArgs& o,
               const train::Recipe& recipe,
               const train::FinetunePlan& plan) {
  if (plan.task == "questions")
    return {"classify", " --question 'Where did Ada live?' --text 'Ada lived in London.'"};
  const auto* labels = recipe.data.labels();
  if (labels != nullptr && labels->has_features) {
    std::string input = fmt::format(" --data {}", shell_word(o.how.data.front()));
    if (!o.how.labels.empty())
      input += fmt::format(" --labels {}", shell_word(o.how.labels.front()));
    if (!o.how.format.empty()) input += fmt::format(" --format {}", o.how.format);
    return {"eval", input};
  }
  if (labels != nullptr)
    return {"classify",
            std::string(" --text 'Ada lived in London.'") +
                (plan.recipe["data"].contains("text_b_key") ? " --text-b 'It rains.'" : "")};
  if (plan.task == "together") return {"embed", " --text 'Ada lived in London.'"};
  if (recipe.spec.arch == model::Arch::encoder) {
    const std::string& file = o.how.data.front();
    const bool text = recipe.data.files().format == train::DataFormat::text;
    return {"eval", fmt::format(" --{} {}", text ? "text" : "data", shell_word(file))};
  }
  return plan.chats ? Trial{"chat", ""} : Trial{"generate", " --prompt 'Ada lived in'"};
}

/// The command that tries the model.
std::string trial_command(const FinetuneArgs& o,
                          const train::Recipe& recipe,
                          const train::FinetunePlan& plan) {
  const Trial trial = trial_of(o, recipe, plan);
  const std::string run = shell_word(o.out);
  return fmt::format(
      "tessera {} {}{}", trial.verb,
      recipe.adapter ? fmt::format("{} --adapter {}", shell_word(o.how.model), run) : run,
      trial.input);
}

/// One row a score, of the best evaluation and of the last.
void print_scores(const Json& best, const Json& last) {
  fmt::print("{:<18}{:>12}{:>12}\n", "validation", "best", "last");
  const auto row = [](const std::string& name, const Json& a, const Json& b) {
    fmt::print("{:<18}{:>12.4f}{:>12.4f}\n", name, a.get<double>(), b.get<double>());
  };
  row("loss", best["valid_loss"], last["valid_loss"]);
  if (best.contains("scores") && last.contains("scores"))
    for (const auto& [name, score] : best["scores"].items())
      if (last["scores"].contains(name)) row(name, score, last["scores"][name]);
  fmt::print("{:<18}{:>12}{:>12}\n", "step", best["step"].get<int64_t>(),
             last["step"].get<int64_t>());
}

/// The checkpoint that the run's folder is loaded as, and the scores of its evaluations.
void report(const FinetuneArgs& o,
            const train::Recipe& recipe,
            const train::FinetunePlan& plan,
            const train::TrainResult& result,
            const fs::path& file) {
  // evaluations of before the run was resumed count too
  const std::vector<train::RunRecord> runs = train::read_runs({o.out});
  const train::LogLine *best = runs.front().best(), *last = nullptr;
  for (const train::LogLine& line : runs.front().lines)
    if (line.valid_loss) last = &line;
  const bool keeps_best = recipe.checkpoint.best > 0 && best != nullptr;
  const fs::path taken = fs::path(o.out) / (keeps_best ? "best" : "latest");
  const std::string step = fs::read_symlink(taken).filename().string();
  Json json = {{"checkpoint", (fs::path(o.out) / step).string()},
               {"latest", result.checkpoint.string()},
               {"recipe", file.string()},
               {"task", plan.task},
               {"seconds", result.seconds}};
  if (best != nullptr) {
    const Json of_best = scores_of(*best), of_last = scores_of(*last);
    json.update(keeps_best ? of_best : of_last);
    json["best"] = of_best;
    json["last"] = of_last;
  }
  if (o.json) return print_json(json);
  if (best != nullptr) print_scores(json["best"], json["last"]);
  fmt::print("{:<18}{} ({}{})\n", "model", o.out, step,
             keeps_best
                 ? fmt::format(", best checkpoint; last: {}", (fs::path(o.out) / "latest").string())
                 : "");
  fmt::print("{:<18}{}\n", "run it", trial_command(o, recipe, plan));
}

int finetune(const FinetuneArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  o.device.check();
  if (!o.recipe) check_out_place("finetune", o.out, o.force, is_run_folder);
  train::FinetunePlan plan = train::plan_finetune(o.how);
  for (const std::string& assignment : o.overrides) model::apply_override(plan.recipe, assignment);
  for (const std::string& line : plan.choices) fmt::print(stderr, "tessera: {}\n", line);
  if (o.recipe) {
    fmt::print("{}\n", plan.recipe.dump(2));
    return kExitOk;
  }
  // read before there is a folder: errors come first
  train::Recipe recipe = train::read_recipe(plan.recipe, "");
  for (const std::string& note : recipe.notes) fmt::print(stderr, "tessera: {}\n", note);
  TrainProgress progress(train::unit_of(recipe.objective->type()));
  train::TrainOptions options;
  options.resume = o.resume;
  options.device = o.device.device([&] { return training_bytes(recipe); });
  options.cancel = &cancel_token();
  options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  options.on_start = [](const std::string& line) { fmt::print(stderr, "tessera: {}\n", line); };
  fs::path file;
  options.on_begin = [&] {
    file = write_recipe(o, plan.recipe);
    fmt::print(stderr, "tessera: recipe: {} (tessera train RECIPE --out RUN)\n", file.string());
  };
  const train::TrainResult result = train::train(recipe, o.out, options);
  report(o, recipe, plan, result, file);
  return kExitOk;
}

}  // namespace

std::function<int()> add_finetune(CLI::App& app) {
  auto o = std::make_shared<FinetuneArgs>();
  train::FinetuneOptions& how = o->how;
  group(app, "Data");
  add_model(app, how.model, "pretrained model: Hugging Face folder, GGUF file or run");
  app.add_option(
         "--data", how.data,
         "training files: .tsv, .csv, .jsonl, .json (a list, or SQuAD), .conll, .txt; images or "
         "sounds: CIFAR, IDX, a list of files, a folder of classes")
      ->required();
  app.add_option("--valid", how.valid, "validation files; default: a tenth of --data");
  app.add_option("--labels", how.labels, "label files for .txt data");
  app.add_option("--format", how.format, "file format; default by file extension")
      ->check(CLI::IsMember({"tsv", "csv", "jsonl", "lines", "conll", "squad", "listops", "cifar",
                             "cifar100", "idx", "folder"}));
  app.add_option("--columns", how.columns,
                 "column names of files without a header, comma-separated")
      ->delimiter(',');
  app.add_option("--separator", how.separator, "column separator; default: tab, comma");
  app.add_option("--text,--text-key", how.text, "column or key of the text");
  app.add_option("--text-b,--text-b-key", how.text_b, "column or key of the second text of a pair");
  app.add_option("--label,--label-key", how.label, "column or key of the label or score");
  app.add_option("--valid-fraction", how.valid_fraction,
                 "validation fraction without --valid; 0 = none")
      ->check(fraction());
  group(app, "Task");
  std::string tasks;
  for (const auto& [name, what] : train::finetune_tasks())
    tasks += fmt::format("{}{} ({})", tasks.empty() ? "" : "; ", name, what);
  std::string aliases, benchmarks;
  for (const auto& [alias, name] : train::finetune_task_aliases())
    aliases += fmt::format("{}{} = {}", aliases.empty() ? "" : ", ", alias, name);
  for (const train::LabelBenchmark& one : train::label_benchmarks())
    benchmarks += (benchmarks.empty() ? "" : ", ") + one.name;
  app.add_option("--task,--task-name", how.task,
                 fmt::format("task; default: by the columns. {}. Also {}. Files of a benchmark: {}",
                             tasks, aliases, benchmarks));
  group(app, "Method");
  auto* lora = app.add_option("--lora,--lora-r,--lora-rank", how.rank,
                              "LoRA rank; base weights stay frozen in their storage type (QLoRA on "
                              "a quantized model)");
  auto* alpha =
      app.add_option("--lora-alpha", o->alpha,
                     fmt::format("LoRA alpha: {}", recipe_key<train::LoraAdapter>("alpha").doc))
          ->check(positive());
  auto* adapter = app.add_option("--adapter", how.adapter, "another PEFT method")
                      ->check(CLI::IsMember({"lora", "dora", "ia3", "prefix", "prompt"}));
  auto* last = app.add_option("--last", how.last, "train only the last N layers and the head");
  auto* head = app.add_flag("--head-only", how.head_only, "train only the head (linear probe)");
  lora->check(positive())->excludes(adapter)->excludes(last)->excludes(head);
  last->check(positive())->excludes(adapter)->excludes(head);
  head->excludes(adapter);
  group(app, "Hyperparameters");
  app.add_option("--lr,--learning-rate", how.lr, "learning rate")->check(positive());
  app.add_option("--epochs,--num-train-epochs", how.epochs, "epochs")->check(positive());
  add_key(app, "--steps,--max-steps", recipe_key<train::TrainRecipe>("steps"), how.steps,
          "; overrides --epochs");
  add_key(app, "--batch,--batch-size,--per-device-train-batch-size",
          recipe_key<train::TrainRecipe>("batch"), how.batch);
  add_key(app, "--length,--max-length,--max-seq-length", recipe_key<train::TrainRecipe>("length"),
          how.length);
  app.add_option("--seed,-s", how.seed, recipe_key<train::TrainRecipe>("seed").doc)->check(seed());
  group(app, "Run");
  auto* out = add_out(app, o->out, "run folder; needed unless --recipe", "--output-dir");
  add_force(app, o->force);
  add_overrides(app, o->overrides, "recipe");
  add_ignore_key(app, how.ignore_keys);
  app.add_flag("--recipe", o->recipe, "print the recipe and exit");
  app.add_flag("--resume", o->resume, "resume from the newest checkpoint of --out");
  o->device.add(app);
  add_threads(app, o->threads);
  app.add_flag("--json", o->json, "result as JSON");
  examples(app,
           {"tessera finetune all-MiniLM-L6-v2 --data train.tsv --valid dev.tsv --out run",
            "tessera finetune model --task glue:mrpc --data train.tsv --valid dev.tsv --out run",
            "tessera finetune model --data reviews.csv --text review --label stars --out run",
            "tessera finetune model.gguf --data chats.jsonl --lora 8 --out run",
            "tessera finetune model --data alpaca.json --out run",
            "tessera finetune model --data preferences.jsonl --task preference --out run",
            "tessera finetune model --data sst2.txt --columns label,text --separator ' ' --out run",
            "tessera finetune model --data train.jsonl --recipe > recipe.json"});
  return [o, out, lora, alpha] {
    if (lora->count() > 0) o->how.adapter = "lora";
    if (alpha->count() > 0) {
      if (o->how.adapter != "lora" && o->how.adapter != "dora")
        fail(ErrorKind::usage, "finetune",
             "--lora-alpha without an adapter that has one; expected "
             "--lora RANK, or --adapter lora or dora");
      o->overrides.push_back(fmt::format("adapter.alpha={}", o->alpha));
    }
    if (out->count() == 0 && !o->recipe)
      fail(ErrorKind::usage, "finetune",
           "--out FOLDER is missing (or use --recipe to print the recipe only)");
    o->how.cancel = &cancel_token();
    return finetune(*o);
  };
}

}  // namespace tessera::cli
