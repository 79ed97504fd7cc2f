// Shared by finetune.cpp and its parts: a plan under construction. Torch-free.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/convert/checkpoint.h"
#include "tessera/model/model_spec.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/chat_data.h"
#include "tessera/train/data/label_benchmarks.h"
#include "tessera/train/data/label_data.h"
#include "tessera/train/recipe/finetune.h"

namespace tessera::train {

inline constexpr const char *kClasses = "classification", *kSeveral = "multi_label",
                            *kNumber = "regression", *kWords = "tokens", *kAnswers = "questions",
                            *kTogether = "together", *kPairs = "pairs", *kChat = "chat",
                            *kPreference = "preference", *kText = "text",
                            *kSimilarity = "similarity";

/// A column name without surrounding blanks, in lower case.
std::string plain_name(std::string_view name);

/// The first wanted name that is known, in its original spelling ("Text", " label"), or "".
std::string first_of(const std::vector<std::string>& wanted, const std::vector<std::string>& known);

/// Text of a file, shortened for a message.
std::string excerpt(std::string_view text);

/// The data before they are read completely.
struct Peek {
  std::vector<std::string> names;  // columns or keys of the first example
  std::vector<Json> some;          // the first examples
};

class Planner {
 public:
  /// `benchmark`: that of the data, or nullptr; both arguments must outlive the planner.
  explicit Planner(const FinetuneOptions& options, const LabelBenchmark* benchmark = nullptr)
      : o_(options), benchmark_(benchmark) {}
  FinetunePlan plan();

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    out_.choices.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  /// The command that is running, for errors, and its name of an option of `finetune` ("--text").
  const char* verb() const { return o_.measured != nullptr ? "eval" : "finetune"; }
  std::string option(std::string_view name) const;
  /// " (objective.date)": the key of a recipe; only training has one.
  std::string key_of_recipe(std::string_view key) const;

  // finetune.cpp: model and training settings
  void open_model();
  /// Throws Error(usage) if the model is an adapter.
  void refuse_adapter() const;
  LabelData label_data() const;
  /// The first examples; a JSON file of SQuAD is recognized by its single list.
  Peek peek();
  bool is_plain_text() const;
  /// True if the examples of a file have keys: JSON lines, or a table with a header.
  bool is_keyed(const std::string& path) const;
  /// Its format. Throws Error(usage) for other files, and for tables read with --columns.
  LabelFormat keyed_format(const std::string& path) const;
  /// The column of a role: as given, otherwise the first usual name in the data.
  std::string role(const std::string& given,
                   const std::vector<std::string>& usual,
                   const char* option);
  [[noreturn]] void missing(const char* option, const char* what) const;
  /// The pooling of a sentence-transformers model; "" for other folders.
  std::string own_pooling() const;
  /// Modules of a sentence-transformers model after its pooling, without normalization: "Dense,
  /// LayerNorm"; "" if there are none. Throws Error(file) for modules that `embed` does not
  /// support.
  std::string modules_left_out() const;
  /// Adds a line if this head prevents exporting to the model's original format.
  void say_export(const Json& objective);
  /// The longest of `lengths`, at most the model's maximum and `most`.
  void set_length(const std::vector<int64_t>& lengths, int64_t most);
  /// Adds a line about the format of the data and its columns.
  void say_format(const std::string& layout = "");
  void hold_out(int64_t n);
  void plan_training();
  double usual_rate() const;
  void freeze();
  /// True if the model reads images or sounds.
  bool reads_features() const;
  bool is_product() const { return o_.adapter == "lora" || o_.adapter == "dora"; }

  // finetune_task.cpp: the task
  bool is_talk(const Peek& data) const;
  /// The task of an evaluated model's head; "" for tokens.
  std::string task_of_head(const Peek& data) const;
  /// True if each example has two texts and a number.
  bool is_scored_pair(const Peek& data) const;
  void infer_task();
  void infer_contrastive();
  void draft_columns(const Peek& data);
  std::string described() const;
  /// The task by the values of a label.
  std::string by_values(const Peek& data, const std::string& label) const;

  // finetune_benchmark.cpp: named data
  /// Format and columns of the benchmark's files.
  void set_benchmark();
  /// The classes in the order of the model's head, or the benchmark's own.
  std::vector<std::string> classes_of_benchmark();

  // finetune_data.cpp: labels, embeddings, pairs, plain text
  /// Reads all examples, for classes and lengths.
  void plan_labels();
  std::vector<std::string> classes_of(const std::vector<std::string>& labels, int64_t n);
  /// For an evaluated model.
  std::vector<std::string> classes_of_head() const;
  /// Reads all examples, for their lengths.
  void plan_together();
  /// Scored pairs, for an evaluated model.
  void plan_similarity();
  /// Images or sounds with labels, for a model that reads them.
  void plan_features();
  /// Sources and targets.
  void plan_pairs();
  void plan_text();

  // finetune_chat.cpp: conversations and preferences
  void plan_chat();
  void plan_preference();
  /// The template format if the tokenizer has no template; nullopt if it has one.
  std::optional<std::string> template_for_messages();
  /// Today's date for a chat template that needs one; nullopt for others.
  std::optional<std::string> template_date();
  /// Visits the first examples, with "FILE: line N", and returns their number.
  int64_t measure(const std::function<void(const Json&, const std::string&)>& visit);

  const FinetuneOptions& o_;
  const LabelBenchmark* benchmark_;
  FinetunePlan out_;
  Json recipe_ = Json::object(), data_ = Json::object(), together_ = Json::object();
  model::ModelSpec spec_;
  std::optional<text::Tokenizer> tokenizer_;
  convert::Checkpoint origin_;      // of the model, without its tensors
  std::vector<std::string> names_;  // columns or keys of the data
  std::string text_key_;            // of plain text in jsonl
  Json first_;                      // the first example
  int64_t parameters_ = 0, length_ = 0, batch_ = 0, samples_ = 0;
};

}  // namespace tessera::train
