// Detects the task from the columns and keys of the data.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/ranges.h>

#include "tessera/format/file_source.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/train/recipe/finetune_planner.h"

namespace tessera::train {
namespace {

/// Usual column names of each role, most likely first.
const std::vector<std::string> kTexts = {
    "text",  "sentence", "sentence1", "premise", "question1", "question", "review", "content",
    "query", "document", "comment",   "tweet",   "utterance", "body",     "title"};
const std::vector<std::string> kSecondTexts = {"text_b",    "text2",    "sentence2", "hypothesis",
                                               "question2", "sentence", "passage",   "text_pair"};
const std::vector<std::string> kLabels = {"label",  "labels", "class",   "category",  "gold_label",
                                          "target", "intent", "emotion", "sentiment", "y"};
const std::vector<std::string> kScores = {"score", "similarity", "similarity_score", "rating"};
const std::vector<std::string> kAnchors = {"anchor",    "query",    "question",
                                           "sentence1", "sentence", "text"};
const std::vector<std::string> kPositives = {"positive", "pos"};
const std::vector<std::string> kNegatives = {"negatives", "negative", "neg"};
const std::vector<std::string> kWordLists = {"words", "tokens"};
const std::vector<std::string> kWordLabels = {"labels", "ner_tags", "tags", "pos_tags",
                                              "chunk_tags"};

std::string text_of_label(const Json& example, const std::string& label) {
  const Json value = label.empty() ? Json() : example.value(label, Json());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Parses a number; nullopt for other text.
std::optional<double> number_in(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' ? std::nullopt : std::optional(number);
}

bool are_numbers(const Peek& data, const std::string& label) {
  return std::all_of(data.some.begin(), data.some.end(), [&](const Json& one) {
    return number_in(text_of_label(one, label)).has_value();
  });
}

}  // namespace

/// True if the first example is a conversation, or a prompt with its completion. Such columns with
/// a label are texts to classify, and with a context a question about it.
bool Planner::is_talk(const Peek& data) const {
  const auto layout = chat_layout_of(data.some.front(), "messages");
  if (!layout || *layout != ChatLayout::prompt_completion) return layout.has_value();
  const auto has = [&](const char* name) { return data.some.front().contains(name); };
  if (has("prompt") && has("completion")) return true;
  return spec_.causal() && !has("context") && first_of(kLabels, names_).empty() &&
         first_of(kPositives, names_).empty();
}

bool Planner::is_scored_pair(const Peek& data) const {
  const std::string text = o_.text.empty() ? first_of(kTexts, data.names) : o_.text;
  std::vector<std::string> second = kSecondTexts;
  std::erase(second, plain_name(text));
  const std::string text_b = o_.text_b.empty() ? first_of(second, data.names) : o_.text_b;
  std::string score = o_.label.empty() ? first_of(kScores, data.names) : o_.label;
  const bool named = !score.empty();
  if (!named) score = first_of(kLabels, data.names);
  // integers under "label" are classes
  return !text.empty() && !text_b.empty() && !score.empty() && are_numbers(data, score) &&
         (named || by_values(data, score) == kNumber);
}

std::string Planner::task_of_head(const Peek& data) const {
  const auto* classes = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get());
  const bool vectors = classes == nullptr && (!spec_.head || spec_.head.type() != "span");
  if (vectors && is_scored_pair(data)) return kSimilarity;
  if (!spec_.head) return first_of(kPositives, data.names).empty() ? "" : kTogether;
  if (spec_.head.type() == "span") return kAnswers;
  const auto* head = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get());
  if (head == nullptr) return "";
  if (head->of == nn::ClassifierOf::tokens) return kWords;
  if (head->n_labels == 1) return kNumber;
  const std::string label = o_.label.empty() ? first_of(kLabels, data.names) : o_.label;
  return !label.empty() && by_values(data, label) == kSeveral ? kSeveral : kClasses;
}

void Planner::infer_task() {
  if (is_plain_text() && o_.task.empty()) {
    out_.task = kText;
    say("task: language modeling on plain text (--task; --labels FILE or --columns for labelled "
        "lines)");
    return;
  }
  const Peek data = peek();
  names_ = data.names;
  first_ = data.some.front();
  const auto has = [&](const std::string& name) {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  };
  std::string task = o_.task;
  if (task.empty() && o_.measured != nullptr) task = task_of_head(data);
  const bool unlabelled = o_.label.empty() && o_.labels.empty();
  if (task.empty() && unlabelled && has("chosen") && has("rejected")) task = kPreference;
  if (task.empty() && unlabelled && is_talk(data)) task = kChat;
  if (task.empty() && has("context") && has("question")) task = kAnswers;
  if (task.empty() && !first_of(kPositives, names_).empty() && unlabelled) task = kTogether;
  const std::string words = first_of(kWordLists, names_);
  if (task.empty() && !words.empty() && data.some.front()[words].is_array()) task = kWords;
  if (!task.empty()) out_.task = task;
  if (task == kChat || task == kPreference) return;
  say_format();
  if (task == kAnswers) {
    if (o_.task.empty()) say("task: extractive question answering (--task)");
    return;
  }
  if (task == kTogether) {
    infer_contrastive();
    return;
  }
  if (task == kWords) {
    if (!words.empty()) data_["words_key"] = words;
    const std::string labels = role(o_.label, kWordLabels, "label");
    if (labels.empty()) missing("label", "the word labels");
    data_["labels_key"] = labels;
    say("task: token classification of \"{}\" by \"{}\" (--task, {})",
        words.empty() ? "words" : words, labels, option("label"));
    return;
  }
  draft_columns(data);
}

void Planner::infer_contrastive() {
  keyed_format(o_.data.front());
  const std::string text = role(o_.text, kAnchors, "text"),
                    positive = role(o_.text_b, kPositives, "text-b"),
                    negatives = first_of(kNegatives, names_);
  if (text.empty()) missing("text", "the text");
  data_["text_key"] = text;
  together_ = {{"type", "contrastive"}};
  if (!positive.empty()) together_["positive_key"] = positive;
  if (!negatives.empty()) together_["negatives_key"] = negatives;
  say("task: contrastive learning, anchor \"{}\", {}{} (--task, {}, {})", text,
      positive.empty() ? "unsupervised (SimCSE)" : fmt::format("positive \"{}\"", positive),
      negatives.empty() ? "" : fmt::format(", hard negatives \"{}\"", negatives), option("text"),
      option("text-b"));
}

void Planner::draft_columns(const Peek& data) {
  const std::string text = role(o_.text, benchmark_ ? benchmark_->text : kTexts, "text");
  std::vector<std::string> second = benchmark_ ? benchmark_->text_b : kSecondTexts;
  std::erase(second, plain_name(text));
  const std::string text_b = role(o_.text_b, second, "text-b");
  std::string label =
      o_.labels.empty() ? role(o_.label, benchmark_ ? benchmark_->label : kLabels, "label") : "";
  const std::string score = o_.labels.empty() && o_.label.empty() ? first_of(kScores, names_) : "";
  const bool by_score = !score.empty() && (label.empty() || out_.task == kSimilarity);
  if (by_score) label = score;
  if (text.empty()) missing("text", "the text");
  if (label.empty() && o_.labels.empty()) {
    // other columns next to a decoder's text, such as its source, are not used
    const bool alone = names_.size() == 1 || (spec_.causal() && text_b.empty() && text == "text");
    if (out_.task.empty() && alone && data.some.front()[text].is_string() &&
        is_keyed(o_.data.front())) {
      out_.task = kText;
      text_key_ = text;
      say("task: language modeling on \"{}\" (no label column; --task)", text);
      say("first example: {}",
          format::in_quotes(excerpt(data.some.front()[text].get<std::string>())));
      return;
    }
    missing("label", "the label");
  }
  data_["text_key"] = text;
  if (!text_b.empty()) data_["text_b_key"] = text_b;
  if (out_.task.empty()) out_.task = by_values(data, label);
  const bool number = out_.task == kNumber || out_.task == kSimilarity;
  if (!label.empty()) data_[number ? "score_key" : "label_key"] = label;
  say("task: {} of \"{}\"{} by {} (--task, {}, {}, {})", described(), text,
      text_b.empty() ? "" : fmt::format(" and \"{}\"", text_b),
      label.empty() ? "a file of labels" : fmt::format("\"{}\"", label), option("text"),
      option("text-b"), option("label"));
}

std::string Planner::described() const {
  if (out_.task == kNumber) return "regression";
  if (out_.task == kSimilarity) return "similarity";
  return out_.task == kSeveral ? "multi-label classification" : "classification";
}

std::string Planner::by_values(const Peek& data, const std::string& label) const {
  bool lists = false, fractions = false;
  for (const Json& one : data.some) {
    lists = lists || (!label.empty() && one.value(label, Json()).is_array());
    const auto number = number_in(text_of_label(one, label));
    fractions = fractions || (number && *number != std::floor(*number));
  }
  return lists ? kSeveral : fractions && are_numbers(data, label) ? kNumber : kClasses;
}

}  // namespace tessera::train
