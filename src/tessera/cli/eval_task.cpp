#include "tessera/cli/eval_task.h"

#include <cmath>
#include <filesystem>
#include <optional>

#include <unistd.h>

#include "tessera/infer/evaluation/passkey.h"
#include "tessera/infer/evaluation/positions.h"
#include "tessera/infer/evaluation/scored_examples.h"
#include "tessera/train/data/tasks.h"

namespace tessera::cli {
namespace {

using infer::Estimate;

constexpr const char* kPasskey = "passkey";
constexpr const char* kPositions = "positions";

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

/// "0.6250 [0.3821, 0.8160]".
std::string with_interval(const Estimate& score) {
  return fmt::format("{:.4f} [{:.4f}, {:.4f}]", score.value, score.low, score.high);
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

}  // namespace

bool EvalTask::reads_text() const {
  return *task_ == kPositions;
}

void EvalTask::add(CLI::App& app, std::string& task) {
  task_ = &task;
  group(app, "Tasks");
  auto* name = app.add_option(
      "--task,--tasks", task,
      "task: a file of multiple choice or generation; passkey, needle, mqar, copying, "
      "selective_copying, induction_heads, parity, modular_sum, s3, s5 (generated); positions "
      "(perplexity by position of --text). With --data: the task of the data; default: by the "
      "model's head and the columns");
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
          "results of each example as JSON lines, from which an interrupted evaluation continues")
      ->needs(name);
  add("--at-once", options.at_once, "examples per batch")->capture_default_str()->check(positive());
  app.add_flag("--add-bos", options.bos,
               "BOS before every context (without it none, as lm-evaluation-harness)")
      ->needs(name);
  app.add_flag("--mutual-information", options.mutual_information,
               "multiple choice: also acc_mutual_info, which scores every choice twice")
      ->needs(name);
  add("--max-new-tokens,-n,--n-predict", options.max_new_tokens,
      "generation: maximum new tokens per answer")
      ->capture_default_str()
      ->check(positive());
  add_texts(app, "--stop", options.stop_strings,
            "generation: stop sequence, end before this string; repeatable; default: a blank line")
      ->needs(name);
  add("--lengths", lengths_,
      "generated tasks: lengths, tokens; default: 256, 512 and 1024, at most the model's context. "
      "positions: the trained length; default: the model's context")
      ->delimiter(',')
      ->check(positive());
  add("--depths", depths_,
      "passkey, needle: depths, shares of the filler before it; default: 0, 0.1, ..., 1")
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

/// The counter on a terminal.
std::function<void(int64_t, int64_t)> example_counter() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [](int64_t done, int64_t total) {
    fmt::print(stderr, "\r{} of {} examples{}", done, total, done == total ? "\n" : "");
  };
}

int evaluate_file(infer::TaskOptions& options,
                  const std::string& file,
                  const std::string& few_shot_file,
                  const std::string& out,
                  Json evaluation,
                  const infer::LoadedModel& loaded,
                  bool json) {
  const infer::TaskFile task = infer::read_task_file(file, options.cancel);
  std::optional<infer::TaskFile> few_shot;
  if (!few_shot_file.empty()) {
    few_shot = infer::read_task_file(few_shot_file, options.cancel);
    options.few_shot.source = &*few_shot;
  }
  evaluation["task_sha256"] = task.sha256;
  evaluation["few_shot_sha256"] = few_shot ? few_shot->sha256 : "";
  infer::ResultLines results =
      out.empty() ? infer::ResultLines() : infer::ResultLines(out, evaluation);
  options.progress = example_counter();
  const infer::TaskReport report = infer::evaluate_task(loaded, task, options, results);
  const char* kind =
      task.kind == infer::TaskKind::multiple_choice ? "multiple choice" : "generation";
  if (report.resumed > 0)
    fmt::print(stderr, "tessera: {} of {} examples from {}\n", report.resumed, report.examples,
               out);
  if (json) {
    Json scores;
    for (const auto& [name, score] : report.scores) scores[name] = score.to_json();
    print_json({{"task", file},
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
    if (o.lengths_.size() > 1)
      fail(ErrorKind::usage, "eval", "{} trained lengths; expected one under --lengths",
           o.lengths_.size());
    return evaluate_by_position({.length = o.lengths_.empty() ? context : o.lengths_.front(),
                                 .seed = o.options.seed,
                                 .kv = o.options.kv,
                                 .cancel = o.options.cancel},
                                loaded, text, json);
  }
  const auto task = generated_task(name, o.items_);
  if (!task && name != kPasskey && !std::filesystem::exists(name))
    fail(ErrorKind::usage, "eval", "--task {}: neither a task nor a file; tasks: {}, {}, {}",
         name.substr(0, 60), kPasskey, kPositions, fmt::join(generated_tasks(), ", "));
  if (!task && name != kPasskey)
    return evaluate_file(o.options, name, o.few_shot_file_, o.out_,
                         {{"evaluation", "tessera eval --task"},
                          {"model", o.model},
                          {"adapters", o.adapters},
                          {"kv_type", spec::name_of(o.options.kv.type)},
                          {"few_shot", o.options.few_shot.examples},
                          {"seed", o.options.seed},
                          {"bos", o.options.bos},
                          {"mutual_information", o.options.mutual_information},
                          {"max_new_tokens", o.options.max_new_tokens},
                          {"stop", o.options.stop_strings}},
                         loaded, json);

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
                       infer::score_examples(loaded.model, o.examples_, make, o.options.seed,
                                             o.options.kv, o.options.cancel)});
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
