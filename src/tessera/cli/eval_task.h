// `eval --task`: evaluates a model on a task file, a benchmark by name, a generated task, or by
// position. Labelled data are in eval_data.h.
#pragma once

#include <functional>

#include "tessera/cli/cli.h"
#include "tessera/infer/evaluation/ruler.h"
#include "tessera/infer/evaluation/task.h"
#include "tessera/train/recipe/finetune.h"

namespace tessera::cli {

struct EvalTask {
  infer::TaskOptions options;
  std::string model;  // for the description of stored results
  std::vector<std::string> adapters;
  train::FinetuneOptions data;  // files of a benchmark, their format and columns
  std::string haystack;         // text of --text for RULER's essays

  /// Adds the options; `task` is set by --task, which --data has too.
  void add(CLI::App& app, std::string& task);
  bool given() const { return task_ != nullptr && !task_->empty(); }
  /// The file of --out, or "".
  const std::string& out() const { return out_; }
  /// Throws Error(usage), with the names, for a task that is neither known nor a file.
  void check() const;
  /// True for --task positions.
  bool reads_text() const;
  /// True for a task of RULER with essays, which takes a text.
  bool reads_haystack() const;
  /// True for RULER's question answering, whose documents are in --data.
  bool asks_questions() const;
  /// True for a benchmark of lm-evaluation-harness by name, whose documents are in --data.
  bool is_benchmark() const;

 private:
  friend int evaluate_task(EvalTask& o,
                           const infer::LoadedModel& loaded,
                           const std::vector<int64_t>& text,
                           bool json);
  friend int evaluate_ruler(EvalTask& o,
                            const infer::RulerTask& task,
                            const infer::LoadedModel& loaded,
                            bool json);
  infer::TaskFile read_task() const;
  /// Describes the evaluation in a file of results.
  Json description() const;

  const std::string* task_ = nullptr;
  CLI::Option *max_new_tokens_ = nullptr, *stop_ = nullptr;
  std::string few_shot_file_, out_;
  std::vector<int64_t> lengths_;
  std::vector<double> depths_;
  int64_t examples_ = 10, items_ = 4;
};

/// `text`: the tokens of --text, if reads_text().
int evaluate_task(EvalTask& o,
                  const infer::LoadedModel& loaded,
                  const std::vector<int64_t>& text,
                  bool json);

/// A task of RULER: recall by length, and of needles by depth (eval_ruler.cpp).
int evaluate_ruler(EvalTask& o,
                   const infer::RulerTask& task,
                   const infer::LoadedModel& loaded,
                   bool json);

/// "0.6250 [0.3821, 0.8160]".
std::string with_interval(const infer::Estimate& score);
/// The counter of examples on a terminal; else empty.
std::function<void(int64_t, int64_t)> example_counter();

}  // namespace tessera::cli
