// A recipe out of a model and a file: what is to be learned is guessed from the columns, lengths
// and rates follow from stated rules, and all of it is said. Torch-free.
//
// Rules, where nothing is given: batch 32 of labels, 16 where texts have more than 256 tokens, 64
// of texts that belong together, 8 of texts to go on with, of conversations and of preferences; 3
// epochs, as many more as make 200 steps, at most 20; AdamW with decay 0.01 and a rate that rises
// over the first tenth and falls to 0; 1e-4 below 50 million parameters, 5e-5 below 200 million,
// 2e-5 above (Mosbach et al. 2020, arXiv:2006.04884: small rates, a rise, more steps where data are
// few); ten times that for adapters of products, a hundred times for other adapters and for heads
// alone, a tenth of it for preferences; length: the longest text, at most 512 tokens and what the
// model takes, 384 for questions, 2048 for conversations and preferences; a tenth of the examples
// held out, unless there are files for that.
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
  std::vector<std::string> data, valid, labels;  // files; labels: a label a line for each of data
  std::string task;                              // one of finetune_tasks(); "" = guessed
  std::string format;                            // of data; "" = by the name
  std::vector<std::string> columns;              // names, of files without a header
  std::string separator;
  std::string text, text_b, label;  // columns; "" = guessed
  std::string adapter;              // type of an adapter; "" = the model itself learns
  int64_t rank = 8;
  int64_t last = 0;  // layers that learn, with the head; 0 = all
  bool head_only = false;
  std::vector<std::string> ignore_keys = {};  // of the model's config (init.ignore_keys)
  std::optional<double> lr = {}, epochs = {}, valid_fraction = {};
  std::optional<int64_t> batch = {}, length = {}, steps = {};
  int64_t seed = 1;
  /// A model as it is, to be measured on the files, not trained: its head says what is asked, and
  /// pairs with a number ask for the similarity of its vectors where no head answers them.
  const model::ModelSpec* measured = nullptr;
  const CancelToken* cancel = nullptr;
};

/// Tasks and what tells each, for help.
std::vector<std::pair<std::string, std::string>> finetune_tasks();

struct FinetunePlan {
  spec::Json recipe;
  std::vector<std::string> said;  // what was guessed, and by which option it changes, a line each
  std::string task;
  bool chats = false;  // whether it learns answers under a template that `tessera chat` finds then
};

/// Throws Error(usage) where the task cannot be guessed or does not fit the model, and what reading
/// the files throws.
FinetunePlan plan_finetune(const FinetuneOptions& options);

}  // namespace tessera::train
