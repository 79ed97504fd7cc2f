// Makes a fine-tuning recipe from a model and a data file: detects the task from the columns,
// chooses length, batch and learning rate by fixed rules, and reports each choice. Torch-free.
//
// Defaults:
//   batch    32 for labels, 16 if texts have more than 256 tokens, 64 for "together" (contrastive),
//            8 for language modeling, conversations and preferences
//   epochs   3; more if that is under 200 steps, at most 20
//   AdamW    weight decay 0.01, warm-up over the first tenth, then decay to 0
//   rate     1e-4 below 50 million parameters, 5e-5 below 200 million, 2e-5 above (Mosbach et al.
//            2020, arXiv:2006.04884: small rates, warm-up, more steps for little data); times 10
//            for LoRA and DoRA, times 100 for other adapters and for heads alone, times 0.1 for
//            preferences
//   length   the longest text, at most the model's maximum and 512 tokens, 384 for questions, 2048
//            for conversations and preferences
//   held out a tenth of the examples, unless there are validation files
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/cancel.h"
#include "tessera/model/model_spec.h"
#include "tessera/spec/json.h"

namespace tessera::train {

struct FinetuneOptions {
  std::string model;
  std::vector<std::string> data, valid,
      labels;          // labels: files with one label a line, for each of data
  std::string task;    // of finetune_tasks(), an alias, or a benchmark (label_benchmarks.h); "" =
                       // detected
  std::string format;  // of data; "" = by file name
  std::vector<std::string> columns;  // column names of files without a header
  std::string separator;
  std::string text, text_b, label;  // columns; "" = detected
  std::string adapter;              // type of the adapter; "" = full fine-tuning
  int64_t rank = 8;
  int64_t last = 0;  // number of last layers to train, with the head; 0 = all
  bool head_only = false;
  std::vector<std::string> ignore_keys = {};  // of the model's config (init.ignore_keys)
  std::optional<double> lr = {}, epochs = {}, valid_fraction = {};
  std::optional<int64_t> batch = {}, length = {}, steps = {};
  int64_t seed = 1;
  /// Evaluates this model on the files instead of training: the task follows from its head, and
  /// scored pairs without a fitting head measure the similarity of its vectors.
  const model::ModelSpec* measured = nullptr;
  const CancelToken* cancel = nullptr;
};

/// Tasks and how each is detected, for help.
std::vector<std::pair<std::string, std::string>> finetune_tasks();
/// Other names of tasks, each with the one of finetune_tasks().
std::vector<std::pair<std::string, std::string>> finetune_task_aliases();

struct FinetunePlan {
  spec::Json recipe;
  std::vector<std::string>
      choices;  // made from the data, and the option that changes each, a line each
  std::string task;
  std::string benchmark;            // "glue:cola", or ""
  std::vector<std::string> scores;  // of a benchmark: those that it reports
  bool chats = false;  // it trains answers with a template that `tessera chat` will use
};

/// Throws Error(usage) if the task cannot be detected or does not fit the model, and the errors of
/// reading the files.
FinetunePlan plan_finetune(const FinetuneOptions& options);

}  // namespace tessera::train
