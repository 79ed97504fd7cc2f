// What finetune.cpp and its parts share: one plan in the making. Torch-free.
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
#include "tessera/train/data/label_data.h"
#include "tessera/train/recipe/finetune.h"

namespace tessera::train {

inline constexpr const char *kClasses = "classification", *kSeveral = "multi_label",
                            *kNumber = "regression", *kWords = "tokens", *kAnswers = "questions",
                            *kTogether = "together", *kPairs = "pairs", *kChat = "chat",
                            *kPreference = "preference", *kText = "text",
                            *kSimilarity = "similarity";

/// A column's name without blanks around it, in small letters.
std::string plain_name(std::string_view name);

/// The first of the wanted names that is known, as it is spelled there ("Text", " label"), or "".
std::string first_of(const std::vector<std::string>& wanted, const std::vector<std::string>& known);

/// A text of a file within a line of ours, without what is too long.
std::string excerpt(std::string_view text);

/// What is known of the data before they are read whole.
struct Peek {
  std::vector<std::string> names;  // columns or keys of the first example
  std::vector<Json> some;          // the first examples
};

class Planner {
 public:
  explicit Planner(const FinetuneOptions& options) : o_(options) {}
  FinetunePlan plan();

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    out_.said.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  /// The verb that asks, which begins errors, and what it calls an option of `finetune` ("--text").
  const char* verb() const { return o_.measured != nullptr ? "eval" : "finetune"; }
  std::string option(std::string_view name) const;
  /// " (objective.date)": the key of a recipe, of which only training has one.
  std::string key_of_recipe(std::string_view key) const;

  // finetune.cpp: the model, and how it is trained
  void open_model();
  /// Throws Error(usage) where the model is an adapter.
  void refuse_adapter() const;
  LabelData label_data() const;
  /// The first examples; a JSON file of SQuAD is told by its one list.
  Peek peek();
  bool is_plain_text() const;
  /// Whether the examples of a file have keys: JSON lines, or a table with a line of names.
  bool is_keyed(const std::string& path) const;
  /// Its format. Throws Error(usage) for other files, and for tables read by --columns.
  LabelFormat keyed_format(const std::string& path) const;
  /// The value of a role: what was given, else the first known name that the data have.
  std::string role(const std::string& given,
                   const std::vector<std::string>& usual,
                   const char* option);
  [[noreturn]] void missing(const char* option, const char* what) const;
  /// How sentence-transformers pool; "" for other folders.
  std::string own_pooling() const;
  /// Names of modules of sentence-transformers that vectors of the model go through after their
  /// pooling, but for their length: "Dense, LayerNorm"; "" without any. Throws Error(file) for
  /// modules that `embed` does not have.
  std::string modules_left_out() const;
  /// A line where the model could go back to the files of its family, and with this head cannot.
  void say_export(const Json& objective);
  /// Of the longest one, up to what the model takes and `most`.
  void set_length(const std::vector<int64_t>& lengths, int64_t most);
  /// How the data are written, and the names in them: a line.
  void say_format(const std::string& layout = "");
  void hold_out(int64_t n);
  void plan_training();
  double usual_rate() const;
  void freeze();
  bool is_product() const { return o_.adapter == "lora" || o_.adapter == "dora"; }

  // finetune_guess.cpp: what is learned
  bool is_talk(const Peek& data) const;
  /// What the head of a model that is measured answers; "" for tokens.
  std::string task_of_head(const Peek& data) const;
  /// Whether two texts and a number stand in each example.
  bool is_scored_pair(const Peek& data) const;
  void guess();
  void guess_together();
  void draft_columns(const Peek& data);
  std::string described() const;
  /// What the values of a label are.
  std::string by_values(const Peek& data, const std::string& label) const;

  // finetune_data.cpp: labels, vectors, pairs, texts
  /// Reads all examples, for classes and lengths.
  void plan_labels();
  std::vector<std::string> classes_of(const std::vector<std::string>& labels, int64_t n);
  /// Of a model that is measured.
  std::vector<std::string> classes_of_head() const;
  /// Reads all examples, for their lengths.
  void plan_together();
  /// Pairs whose vectors are as near as a number says, of a model that is measured.
  void plan_similarity();
  /// Sources and what is answered to them.
  void plan_pairs();
  void plan_text();

  // finetune_chat.cpp: conversations and preferences
  void plan_chat();
  void plan_preference();
  /// How messages are written where the tokenizer has no template; nothing where it has one.
  std::optional<std::string> template_for_messages();
  /// The day that a chat template which asks for one tells, today's; nothing for the others.
  std::optional<std::string> template_date();
  /// Visits the first examples, with "FILE: line N", and returns how many there are.
  int64_t measure(const std::function<void(const Json&, const std::string&)>& visit);

  const FinetuneOptions& o_;
  FinetunePlan out_;
  Json recipe_ = Json::object(), data_ = Json::object(), together_ = Json::object();
  model::ModelSpec spec_;
  std::optional<text::Tokenizer> tokenizer_;
  convert::Checkpoint origin_;      // of the model, without its tensors
  std::vector<std::string> names_;  // columns or keys of the data
  std::string text_key_;            // of text alone in jsonl
  Json first_;                      // the first example
  int64_t parameters_ = 0, length_ = 0, batch_ = 0, samples_ = 0;
};

}  // namespace tessera::train
