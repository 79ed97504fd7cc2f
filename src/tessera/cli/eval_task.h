// `eval --task` without --data: evaluates a model on a task file, a generated task, or by position.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/infer/evaluation/task.h"

namespace tessera::cli {

struct EvalTask {
  infer::TaskOptions options;
  std::string model;  // for the description of stored results
  std::vector<std::string> adapters;

  /// Adds the options; `task` is set by --task, which --data has too.
  void add(CLI::App& app, std::string& task);
  bool given() const { return task_ != nullptr && !task_->empty(); }
  /// True for --task positions.
  bool reads_text() const;

 private:
  friend int evaluate_task(EvalTask& o,
                           const infer::LoadedModel& loaded,
                           const std::vector<int64_t>& text,
                           bool json);

  const std::string* task_ = nullptr;
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

}  // namespace tessera::cli
