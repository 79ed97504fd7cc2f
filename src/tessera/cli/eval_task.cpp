#include "tessera/cli/eval_task.h"

#include <cmath>
#include <filesystem>
#include <optional>

#include <unistd.h>

#include "tessera/base/sha256.h"
#include "tessera/infer/evaluation/choice_benchmarks.h"
#include "tessera/infer/evaluation/passkey.h"
#include "tessera/infer/evaluation/positions.h"
#include "tessera/infer/evaluation/scored_examples.h"
#include "tessera/train/data/label_benchmarks.h"
#include "tessera/train/data/tasks.h"

namespace tessera::cli {
namespace {

using infer::Estimate;

constexpr const char* kPasskey = "passkey";
constexpr const char* kPositions = "positions";

std::string ruler_names() {
  std::vector<std::string> names;
  for (const auto* tasks : {&infer::ruler_tasks(), &infer::ruler_question_tasks()})
    for (const infer::RulerTask& task : *tasks) names.push_back(task.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string label_benchmark_names() {
  std::vector<std::string> names;
  for (const train::LabelBenchmark& one : train::label_benchmarks()) names.push_back(one.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> generated_tasks() {
  std::vector<std::string> names;
  spec::for_each_type<train::TaskRecipe>([&](auto task) { names.emplace_back(task.kName); });
  return names;
}

/// The generated task of this name, with `items` if it has that key.
std::optional<train::TaskRecipe> generated_task(const std::string& name, int64_t items) {
  std::optional<train::TaskRecipe> out;
  spec::for_each_type<train::TaskRecipe>([&](auto task) {
    if (name != task.kName) return;
    if constexpr (requires { task.items; }) task.items = items;
    out = task;
  });
  return out;
}

/// A generated task at one length and, for retrieval, one depth.
struct Cell {
  int64_t length = 0;
  std::optional<double> depth;
  infer::ExampleScores scores;
};

/// One line for each length or depth; retrieval has a column for each length.
void print_grid(const std::vector<Cell>& cells, const std::vector<int64_t>& lengths) {
  if (!cells.front().depth) {
    fmt::print("{:>8}  {:<26}{:<26}{}\n", "length", "exact match", "accuracy", "nll");
    for (const Cell& cell : cells)
      fmt::print("{:>8}  {:<26}{:<26}{:.4f}\n", cell.length, with_interval(cell.scores.exact_match),
                 with_interval(cell.scores.accuracy), cell.scores.nll);
  } else {
    fmt::print("{:>8}", "depth");
    for (const int64_t length : lengths) fmt::print("{:>25}", fmt::format("{} tokens", length));
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i % lengths.size() == 0) fmt::print("\n{:>8.2f}", *cells[i].depth);
      fmt::print("  {}", with_interval(cells[i].scores.exact_match));
    }
    fmt::print("\n");
  }
}

Json cell_json(const Cell& cell) {
  Json json = {{"length", cell.length}};
  if (cell.depth) json["depth"] = *cell.depth;
  json.update({{"examples", cell.scores.examples},
               {"exact_match", cell.scores.exact_match.to_json()},
               {"accuracy", cell.scores.accuracy.to_json()},
               {"nll", cell.scores.nll}});
  return json;
}

/// The documents of a benchmark; `labels`: files with a label a line, for each of the files.
infer::TaskFile read_benchmark(const std::string& name,
                               const std::vector<std::string>& files,
                               const std::vector<std::string>& labels,
                               const train::FinetuneOptions& how) {
  const infer::ChoiceBenchmark benchmark(name);
  train::LabelData data;
  data.train = files;
  data.train_labels = labels;
  data.columns = how.columns;
  data.separator = how.separator;
  if (!how.format.empty())
    spec::detail::read_value(Json(how.format), data.format, {}, spec::Scope().at("--format"));
  train::check_label_data(data, "data");
  infer::TaskFile task;
  task.scores = benchmark.scores();
  for (size_t f = 0; f < files.size(); ++f) {
    const std::vector<std::string> own =
        labels.empty() ? std::vector<std::string>() : train::read_label_file(labels.at(f));
    size_t number = 0;
    train::for_each_record(data, files[f], [&](train::Record&& record) {
      cancel_token().check("eval");
      if (number < own.size()) record.values["label"] = own[number];
      infer::add_example(task, benchmark.example(record.values, record.where), record.where);
      ++number;
    });
    if (!own.empty() && own.size() != number)
      fail(ErrorKind::input, "eval", "{}: {} labels; expected {}, one for every document of {}",
           labels[f], own.size(), number, files[f]);
    task.sha256 += (f > 0 ? " " : "") + sha256_file(files[f]);
  }
  if (task.examples.empty())
    fail(ErrorKind::input, "eval", "{}: no document; expected those of {}", files.front(), name);
  return task;
}

}  // namespace

std::string with_interval(const Estimate& score) {
  return fmt::format("{:.4f} [{:.4f}, {:.4f}]", score.value, score.low, score.high);
}

std::function<void(int64_t, int64_t)> example_counter() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [](int64_t done, int64_t total) {
    fmt::print(stderr, "\r{} of {} examples{}", done, total, done == total ? "\n" : "");
  };
}

void EvalTask::check() const {
  const std::string& name = *task_;
  if (name == kPasskey || name == kPositions || is_benchmark() ||
      infer::find_ruler_task(name) != nullptr || generated_task(name, 1) ||
      std::filesystem::exists(name))
    return;
  if (const train::LabelBenchmark* labels = train::find_label_benchmark(name))
    fail(ErrorKind::usage, "eval", "--task {} without its examples; expected --data FILE",
         labels->name);
  fail(ErrorKind::usage, "eval",
       "--task {}: neither a task nor a file; tasks: {}, {}, {}, {}; with --data: {}, {}",
       name.substr(0, 60), kPasskey, kPositions, fmt::join(generated_tasks(), ", "), ruler_names(),
       fmt::join(infer::choice_benchmarks(), ", "), label_benchmark_names());
}

bool EvalTask::reads_text() const {
  return *task_ == kPositions;
}

bool EvalTask::reads_haystack() const {
  const infer::RulerTask* task = infer::find_ruler_task(*task_);
  return task != nullptr && task->haystack == infer::RulerTask::Haystack::essay;
}

bool EvalTask::asks_questions() const {
  const infer::RulerTask* task = given() ? infer::find_ruler_task(*task_) : nullptr;
  return task != nullptr && task->kind == infer::RulerTask::Kind::questions;
}

bool EvalTask::is_benchmark() const {
  const auto& names = infer::choice_benchmarks();
  return given() && std::find(names.begin(), names.end(), *task_) != names.end();
}

infer::TaskFile EvalTask::read_task() const {
  if (!is_benchmark()) return infer::read_task_file(*task_, options.cancel);
  if (data.data.empty())
    fail(ErrorKind::usage, "eval", "--task {} without its documents; expected --data FILE", *task_);
  return read_benchmark(*task_, data.data, data.labels, data);
}

Json EvalTask::description() const {
  return {{"evaluation", "tessera eval --task"},
          {"model", model},
          {"adapters", adapters},
          {"kv_type", spec::name_of(options.kv.type)},
          {"few_shot", options.few_shot.examples},
          {"seed", options.seed},
          {"bos", options.bos},
          {"mutual_information", options.mutual_information},
          {"max_new_tokens", options.max_new_tokens},
          {"stop", options.stop_strings}};
}

void EvalTask::add(CLI::App& app, std::string& task) {
  task_ = &task;
  group(app, "Tasks");
  auto* name = app.add_option(
      "--task,--tasks", task,
      fmt::format("task: a file of multiple choice or generation; passkey, {} (RULER), {} "
                  "(generated); positions (perplexity by position of --text). With --data a "
                  "benchmark of lm-evaluation-harness: {}; or the task of labelled data, such as "
                  "{} or {}; default: by the model's head and the columns",
                  ruler_names(), fmt::join(generated_tasks(), ", "),
                  fmt::join(infer::choice_benchmarks(), ", "),
                  train::label_benchmarks().front().name, train::label_benchmarks().back().name));
  const auto add = [&](const char* flag, auto& value, const std::string& help) {
    return app.add_option(flag, value, help)->needs(name);
  };
  add("--few-shot,--num-fewshot", options.few_shot.examples,
      "few-shot prompts: solved examples before each one")
      ->capture_default_str()
      ->check(not_negative());
  add("--few-shot-from", few_shot_file_,
      "file of the few-shot examples; default: the other examples of the task");
  add("--seed,-s", options.seed,
      "seed of few-shot examples, generated examples and bootstrap intervals")
      ->capture_default_str()
      ->check(seed());
  add("--limit", options.limit, "first N examples of the file only; 0 = all")
      ->capture_default_str()
      ->check(not_negative());
  add_out(app, out_,
          "results of each example as JSON lines, of labelled data logits; an interrupted "
          "evaluation continues from them")
      ->needs(name);
  add("--at-once", options.at_once, "examples per batch")->capture_default_str()->check(positive());
  app.add_flag("--add-bos", options.bos,
               "BOS before every context (without it none, as lm-evaluation-harness)")
      ->needs(name);
  app.add_flag("--mutual-information", options.mutual_information,
               "multiple choice: also acc_mutual_info, which scores every choice twice")
      ->needs(name);
  max_new_tokens_ = add("--max-new-tokens,-n,--n-predict", options.max_new_tokens,
                        "generation: maximum new tokens per answer; RULER has its own")
                        ->capture_default_str()
                        ->check(positive());
  stop_ = add_texts(app, "--stop", options.stop_strings,
                    "generation: stop sequence, end before this string; repeatable; default: a "
                    "blank line, of RULER none");
  stop_->needs(name);
  add("--lengths", lengths_,
      "generated tasks: lengths, tokens; default: 256, 512 and 1024, of RULER 1024, 2048 and 4096, "
      "at most the model's context. positions: the trained length; default: the model's context")
      ->delimiter(',')
      ->check(positive());
  add("--depths", depths_,
      "passkey, needle, niah: depths, shares of the filler before it; default: 0, 0.1, ..., 1")
      ->delimiter(',')
      ->check(fraction());
  add("--examples", examples_, "generated tasks: examples per length and depth")
      ->capture_default_str()
      ->check(positive());
  add("--items", items_,
      "mqar: keys; copying: symbols; needle: tokens of the value; modular_sum: the modulus")
      ->capture_default_str()
      ->check(positive());
}

namespace {

const char* described(infer::TaskKind kind) {
  switch (kind) {
    case infer::TaskKind::multiple_choice:
      return "multiple choice";
    case infer::TaskKind::continuation:
      return "log-likelihood";
    case infer::TaskKind::retrieval:
      return "retrieval";
    case infer::TaskKind::generation:
      break;
  }
  return "generation";
}

int evaluate_file(infer::TaskOptions& options,
                  const std::string& name,
                  const infer::TaskFile& task,
                  const std::optional<infer::TaskFile>& few_shot,
                  const std::string& out,
                  Json evaluation,
                  const infer::LoadedModel& loaded,
                  bool json) {
  if (few_shot) options.few_shot.source = &*few_shot;
  evaluation["task_sha256"] = task.sha256;
  evaluation["few_shot_sha256"] = few_shot ? few_shot->sha256 : "";
  infer::ResultLines results =
      out.empty() ? infer::ResultLines() : infer::ResultLines(out, evaluation);
  options.progress = example_counter();
  const infer::TaskReport report = infer::evaluate_task(loaded, task, options, results);
  const char* kind = described(task.kind);
  if (report.resumed > 0)
    fmt::print(stderr, "tessera: {} of {} examples from {}\n", report.resumed, report.examples,
               out);
  if (json) {
    Json scores;
    for (const auto& [name, score] : report.scores) scores[name] = score.to_json();
    print_json({{"task", name},
                {"kind", kind},
                {"examples", report.examples},
                {"few_shot", options.few_shot.examples},
                {"seed", options.seed},
                {"scores", scores},
                {"prompt_tokens", report.computed_tokens},
                {"cached_tokens", report.cached_tokens}});
    return kExitOk;
  }
  fmt::print("{}, {} examples, {}-shot\n", kind, report.examples, options.few_shot.examples);
  fmt::print("{:<18}{:>9}{:>9}  {}\n", "", "value", "stderr", "95 % confidence interval");
  for (const auto& [name, score] : report.scores)
    fmt::print("{:<18}{:>9.4f}{:>9.4f}  [{:.4f}, {:.4f}] ({})\n", name, score.value,
               score.standard_error, score.low, score.high, score.interval);
  return kExitOk;
}

int evaluate_by_position(infer::PositionOptions options,
                         const infer::LoadedModel& loaded,
                         const std::vector<int64_t>& text,
                         bool json) {
  const infer::PositionReport report = infer::evaluate_positions(loaded.model, text, options);
  if (json) {
    Json positions = Json::array(), lengths = Json::array(), contexts = Json::array();
    for (const infer::PositionBucket& one : report.positions)
      positions.push_back({{"begin", one.begin}, {"end", one.end}, {"nll", one.nll.to_json()}});
    for (const infer::LengthScore& one : report.lengths)
      lengths.push_back({{"length", one.length},
                         {"factor", one.factor},
                         {"windows", one.windows},
                         {"nll", one.nll.to_json()},
                         {"last_nll", one.last_nll.to_json()}});
    for (const infer::ContextScore& one : report.contexts)
      contexts.push_back({{"context", one.context}, {"nll", one.nll.to_json()}});
    print_json({{"task", kPositions},
                {"trained_length", options.length},
                {"positions", positions},
                {"lengths", lengths},
                {"contexts", contexts}});
    return kExitOk;
  }
  fmt::print("{:<22}{:<28}{}\n", "position", "nll (95 % bootstrap)", "perplexity");
  for (const infer::PositionBucket& one : report.positions)
    fmt::print("{:<22}{:<28}{:.4f}\n", fmt::format("{} to {}", one.begin, one.end - 1),
               with_interval(one.nll), std::exp(one.nll.value));
  fmt::print("\n{:<10}{:<12}{:<28}{}\n", "length", "windows", "nll", "nll, last trained length");
  for (const infer::LengthScore& one : report.lengths)
    fmt::print("{:<10}{:<12}{:<28}{}\n", one.length, one.windows, with_interval(one.nll),
               with_interval(one.last_nll));
  fmt::print("\n{:<22}{:<28}{}\n", "context, tokens", "nll of the same targets", "perplexity");
  for (const infer::ContextScore& one : report.contexts)
    fmt::print("{:<22}{:<28}{:.4f}\n", one.context, with_interval(one.nll),
               std::exp(one.nll.value));
  return kExitOk;
}

/// Tokens of a passkey prompt and its answer, with targets for the answer.
infer::TargetedExample passkey_example(const infer::LoadedModel& loaded,
                                       int64_t length,
                                       double depth,
                                       bool bos,
                                       const RandomKey& key) {
  const infer::Passkey made =
      infer::make_passkey(*loaded.tokenizer, length - (bos ? 1 : 0), depth, key);
  const infer::Continuation text =
      infer::encode_continuation(*loaded.tokenizer, made.prompt, made.answer, 0, bos);
  infer::TargetedExample out{.ids = {text.tokens.begin(), text.tokens.end() - 1},
                             .targets = {text.tokens.begin() + 1, text.tokens.end()}};
  std::fill_n(out.targets.begin(), text.context - 1, -1);
  return out;
}

}  // namespace

int evaluate_task(EvalTask& o,
                  const infer::LoadedModel& loaded,
                  const std::vector<int64_t>& text,
                  bool json) {
  const std::string& name = *o.task_;
  const model::ModelSpec& spec = loaded.model.spec();
  o.options.cancel = &cancel_token();
  o.options.few_shot.seed = o.options.seed;
  const int64_t context = infer::longest_sequence(spec, 0);
  if (o.reads_text()) {
    if (!o.out_.empty())
      fail(ErrorKind::usage, "eval", "--out with --task {}; expected it with examples", kPositions);
    if (o.lengths_.size() > 1)
      fail(ErrorKind::usage, "eval", "{} trained lengths; expected one under --lengths",
           o.lengths_.size());
    return evaluate_by_position({.length = o.lengths_.empty() ? context : o.lengths_.front(),
                                 .seed = o.options.seed,
                                 .kv = o.options.kv,
                                 .cancel = o.options.cancel},
                                loaded, text, json);
  }
  if (const infer::RulerTask* ruler = infer::find_ruler_task(name))
    return evaluate_ruler(o, *ruler, loaded, json);
  const auto task = generated_task(name, o.items_);
  if (!task && name != kPasskey) {
    // the documents of few-shot examples have the benchmark's layout, and their own labels
    std::optional<infer::TaskFile> few_shot;
    if (!o.few_shot_file_.empty())
      few_shot = o.is_benchmark() ? read_benchmark(name, {o.few_shot_file_}, {}, o.data)
                                  : infer::read_task_file(o.few_shot_file_, o.options.cancel);
    return evaluate_file(o.options, name, o.read_task(), few_shot, o.out_, o.description(), loaded,
                         json);
  }

  const bool by_depth = !task || std::holds_alternative<train::NeedleTask>(*task);
  if (!by_depth && !o.depths_.empty())
    fail(ErrorKind::usage, "eval", "--depths with --task {}; expected it with passkey or needle",
         name);
  if (!task && !loaded.tokenizer)
    fail(ErrorKind::usage, "eval", "the model has no tokenizer; expected one for passkey");
  std::vector<int64_t> lengths = o.lengths_;
  if (lengths.empty())
    for (const int64_t length : {256, 512, 1024})
      if (lengths.empty() || context == 0 || length <= context) lengths.push_back(length);
  std::vector<double> depths = o.depths_;
  for (int i = 0; by_depth && o.depths_.empty() && i <= 10; ++i) depths.push_back(i / 10.0);
  if (!by_depth) depths = {0};
  if (task)
    for (const int64_t length : lengths) train::check_task(*task, spec.vocab, length, "--lengths");

  Json evaluation = o.description();
  evaluation.update({{"task", name},
                     {"lengths", lengths},
                     {"depths", depths},
                     {"examples", o.examples_},
                     {"items", o.items_}});
  infer::ResultLines results =
      o.out_.empty() ? infer::ResultLines() : infer::ResultLines(o.out_, evaluation);
  if (!results.done().empty())
    fmt::print(stderr, "tessera: {} of {} examples from {}\n", results.done().size(),
               std::ssize(depths) * std::ssize(lengths) * o.examples_, o.out_);
  std::vector<Cell> cells;
  const auto show = example_counter();
  for (const double depth : depths)
    for (const int64_t length : lengths) {
      const RandomKey key =
          RandomKey(o.options.seed).fold(name).fold(static_cast<uint64_t>(length));
      const auto make = [&](int64_t i) -> infer::TargetedExample {
        const RandomKey own = key.fold(static_cast<uint64_t>(i));
        if (!task) return passkey_example(loaded, length, depth, o.options.bos, own);
        train::Example example = train::make_example(
            *task, spec.vocab, length, own, by_depth ? std::optional(depth) : std::nullopt);
        return {std::move(example.ids), std::move(example.targets)};
      };
      cells.push_back({length, by_depth ? std::optional(depth) : std::nullopt,
                       infer::score_examples(loaded.model, o.examples_, make,
                                             {.seed = o.options.seed,
                                              .kv = o.options.kv,
                                              .cancel = o.options.cancel,
                                              .results = &results,
                                              .first = std::ssize(cells) * o.examples_})});
      if (show)
        show(std::ssize(cells) * o.examples_,
             std::ssize(depths) * std::ssize(lengths) * o.examples_);
    }
  if (json) {
    Json list = Json::array();
    for (const Cell& cell : cells) list.push_back(cell_json(cell));
    print_json({{"task", name}, {"seed", o.options.seed}, {"cells", list}});
    return kExitOk;
  }
  fmt::print("{}, {} examples each; exact match with its 95 % Wilson interval{}\n", name,
             o.examples_, by_depth ? "" : ", accuracy with a bootstrap interval");
  print_grid(cells, lengths);
  return kExitOk;
}

}  // namespace tessera::cli
