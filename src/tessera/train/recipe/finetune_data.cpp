// Fine-tuning plans for labels, embeddings, pairs and plain text.
#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "tessera/convert/checkpoint_place.h"
#include "tessera/format/file_source.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/text/tokenizer/answer_windows.h"
#include "tessera/text/tokenizer/text_pair.h"
#include "tessera/text/tokenizer/vocabularies.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/data/label_examples.h"
#include "tessera/train/recipe/finetune_planner.h"

namespace tessera::train {
namespace {

/// Usual column names of each role, most likely first.
const std::vector<std::string> kSources = {"source", "src",      "input",   "question",
                                           "prompt", "document", "article", "text"};
const std::vector<std::string> kTargets = {"target",  "tgt",         "output",  "answer",
                                           "summary", "translation", "response"};
const std::vector<std::string> kFiles = {"file_name", "filename", "file", "path", "image", "audio"};
const std::vector<std::string> kFileLabels = {"label", "labels", "class", "category", "target"};

std::string shown_text(std::string_view text) {
  return format::in_quotes(excerpt(text));
}

/// A value of a key, shortened for a message.
std::string shown_text(const Json& example, const std::string& key) {
  const auto found = example.find(key);
  if (found == example.end()) return "nothing";
  return found->is_string() ? shown_text(found->get<std::string>())
                            : excerpt(found->dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

void Planner::plan_labels() {
  const LabelData data = label_data();
  std::vector<std::string> labels;
  std::vector<int64_t> lengths;
  const bool words = out_.task == kWords, answers = out_.task == kAnswers;
  int64_t n = 0;
  if (answers) {
    const std::vector<Question> all = read_questions(data, LabelSplit::train, o_.cancel);
    n = std::ssize(all);
    if (n > 0)
      say("first example: question {}, context {} -> {}", shown_text(all[0].question),
          shown_text(all[0].context),
          all[0].answers.empty() ? "no answer" : shown_text(all[0].answers[0].text));
  } else if (words) {
    const text::WordTokens tokens(*tokenizer_);
    for (const LabelledWords& one : read_words(data, LabelSplit::train, o_.cancel)) {
      if (n == 0)
        say("first example: {} -> {}", excerpt(fmt::format("{}", fmt::join(one.words, " "))),
            excerpt(fmt::format("{}", fmt::join(one.labels, " "))));
      labels.insert(labels.end(), one.labels.begin(), one.labels.end());
      int64_t length = text::tokens_around(*tokenizer_, false);
      for (size_t i = 0; i < one.words.size(); ++i)
        length += std::ssize(tokens.of(one.words[i], i == 0));
      lengths.push_back(length);
      ++n;
    }
  } else {
    const LabelOf kind = out_.task == kNumber    ? LabelOf::score
                         : out_.task == kSeveral ? LabelOf::multi_label
                                                 : LabelOf::one_class;
    const auto* head = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get());
    const bool two_towers = head != nullptr && head->two_towers();
    const auto length_of = [&](const std::string& text, const std::string& second) {
      return std::ssize(text::classifier_input(
                            *tokenizer_, text,
                            second.empty() ? std::nullopt : std::optional<std::string_view>(second),
                            0)
                            .ids);
    };
    for (const LabelledText& one : read_texts(data, LabelSplit::train, kind, o_.cancel)) {
      if (n == 0)
        say("first example: {}{} -> {}", shown_text(one.text),
            one.text_b.empty() ? "" : ", " + shown_text(one.text_b),
            kind == LabelOf::score ? fmt::format("{}", one.score)
                                   : fmt::format("{}", fmt::join(one.labels, ", ")));
      labels.insert(labels.end(), one.labels.begin(), one.labels.end());
      lengths.push_back(length_of(one.text, two_towers ? "" : one.text_b));
      if (two_towers && !one.text_b.empty()) lengths.push_back(length_of(one.text_b, ""));
      ++n;
    }
  }
  Json objective = {{"type", answers                ? "question_answering"
                             : words                ? "token_classification"
                             : out_.task == kNumber ? "regression"
                                                    : "classification"}};
  if (!answers && out_.task != kNumber) objective["labels"] = classes_of(labels, n);
  if (out_.task == kSeveral) objective["multi_label"] = true;
  if (const std::string pool = words || answers || o_.measured != nullptr ? "" : own_pooling();
      pool == "mean" || pool == "max") {
    objective["pool"] = pool;
    say("pooling: {} (from the model; objective.pool)", pool);
  }
  set_length(lengths, answers ? 384 : 512);
  if (answers) objective["stride"] = std::min<int64_t>(128, length_ / 3);
  say_export(objective);
  recipe_["objective"] = std::move(objective);
  hold_out(n);
  batch_ = o_.batch.value_or(length_ > 256 ? 16 : 32);
  samples_ = n;
}

std::vector<std::string> Planner::classes_of_head() const {
  const auto* head = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get());
  if (head == nullptr)
    fail(ErrorKind::usage, "eval",
         "{} has the head \"{}\", which gives no classes; expected a model that was fine-tuned on "
         "labels",
         o_.model, spec_.head ? spec_.head.type() : "none");
  std::vector<std::string> names = head->labels;
  // without names, classes are numbers
  for (int64_t i = std::ssize(names); i < head->n_labels; ++i) names.push_back(std::to_string(i));
  return names;
}

std::vector<std::string> Planner::classes_of(const std::vector<std::string>& labels, int64_t n) {
  if (labels.empty()) fail(ErrorKind::input, verb(), "no example has a label; expected some");
  if (benchmark_ != nullptr) return classes_of_benchmark();
  if (o_.measured != nullptr) return classes_of_head();
  std::vector<std::string> names = ClassNames::of(labels).names();
  constexpr int64_t kMany = 1000;
  if (std::ssize(names) > kMany ||
      (out_.task != kWords && std::ssize(names) > std::max<int64_t>(20, n / 2)))
    fail(ErrorKind::usage, verb(),
         "{} different labels in {} examples; expected classes (--task regression for numbers, "
         "{} for another column)",
         names.size(), n, option("label"));
  if (names.size() < 2 && out_.task != kSeveral)
    fail(ErrorKind::usage, verb(),
         "every label is \"{}\"; expected at least two classes ({} for another column)",
         names.front(), option("label"));
  // the class order of a model with these classes
  if (const auto* head = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get())) {
    std::set<std::string> own(head->labels.begin(), head->labels.end());
    if (own == std::set<std::string>(names.begin(), names.end())) names = head->labels;
  }
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + std::min<std::ptrdiff_t>(10, std::ssize(names)));
  say("{} classes: {}{} (objective.labels)", names.size(), fmt::join(shown, ", "),
      names.size() > shown.size() ? ", ..." : "");
  return names;
}

void Planner::plan_together() {
  const LabelData data = label_data();
  std::vector<int64_t> lengths;
  int64_t n = 0;
  for (const std::string& path : o_.data)
    for_each_record(data, path, [&](Record&& record) {
      ++n;
      for (const auto& [key, value] : record.values.items())
        if (value.is_string() &&
            (key == data.text_key || key == together_.value("positive_key", std::string())))
          lengths.push_back(std::ssize(tokenizer_->encode(value.get<std::string>(), {})));
    });
  say("first example: anchor {}, positive {}", shown_text(first_, data.text_key),
      together_.contains("positive_key")
          ? shown_text(first_, together_["positive_key"].get<std::string>())
          : "itself");
  const std::string own = own_pooling(), pool = own.empty() ? "mean" : own;
  together_["pooling"] = pool;
  say("sentence-embedding pooling: {}{}", pool, key_of_recipe("objective.pooling"));
  if (const std::string left = modules_left_out(); !left.empty())
    say("modules after the pooling are left out of {}: {}",
        o_.measured != nullptr ? "the scores" : "training and of what it writes", left);
  recipe_["objective"] = together_;
  // the format follows from the file names
  if (!is_keyed(o_.data.front())) data_.erase("format");
  set_length(lengths, 512);
  hold_out(n);
  batch_ = o_.batch.value_or(std::min<int64_t>(64, std::max<int64_t>(2, n / 4)));
  samples_ = n;
  say("in-batch negatives: {} per text (--batch)", batch_ - 1);
}

void Planner::plan_similarity() {
  if (!data_.contains("text_b_key")) missing("text-b", "the second text");
  if (!data_.contains("score_key")) missing("label", "the similarity");
  length_ = o_.length.value_or(0);
  batch_ = o_.batch.value_or(32);
  samples_ = 1;
}

void Planner::plan_features() {
  const bool is_class = out_.task.empty() || out_.task == kClasses;
  if (!is_class && out_.task != kNumber && out_.task != kSeveral)
    fail(ErrorKind::usage, verb(), "--task {}: {} reads images or sounds; expected {}, {} or {}",
         out_.task, o_.model, kClasses, kSeveral, kNumber);
  // a list names its files; other formats have them
  const std::string& path = o_.data.front();
  const bool listed = is_keyed(path) && !std::filesystem::is_directory(path);
  std::string file = "file_name", label = "label";
  if (listed) {
    names_ = peek().names;
    file = role(o_.text, kFiles, "text");
    label = o_.labels.empty() ? role(o_.label, kFileLabels, "label") : label;
    if (file.empty()) missing("text", "the file of an image or sound");
    if (label.empty()) missing("label", "the label");
  }
  data_["file_key"] = file;
  const auto* head = dynamic_cast<const nn::ClassifierConfig*>(spec_.head.config.get());
  if (out_.task.empty())
    out_.task =
        o_.measured != nullptr && head != nullptr && head->n_labels == 1 ? kNumber : kClasses;
  data_[out_.task == kNumber ? "score_key" : "label_key"] = label;
  if (const auto own = infer::read_feature_settings(
          convert::checkpoint_place(std::filesystem::path(o_.model)))) {
    data_["input"] = spec::enum_name(own->kind);
    data_["image"] = spec::dump_struct(own->image);
    data_["audio"] = spec::dump_struct(own->audio);
  }
  LabelData data = label_data();
  const auto& embed = dynamic_cast<const nn::FeatureEmbedConfig&>(*spec_.embed.config);
  if (data_.contains("input")) {
    const spec::Scope scope = spec::Scope().at("data");
    spec::detail::read_value(data_["input"], data.input, {}, scope.at("input"));
    data.image = spec::read_struct<infer::ImageSettings>(data_["image"], scope.at("image"));
    data.audio = spec::read_struct<infer::AudioSettings>(data_["audio"], scope.at("audio"));
  }
  const infer::FeatureSettings settings = feature_settings(data, embed);
  const auto shape = settings.shape(embed);
  say("task: {} of {}{}", out_.task == kNumber ? "regression" : "classification",
      settings.kind == infer::InputKind::image ? "images" : "sounds",
      shape ? fmt::format(", [{}]", fmt::join(*shape, ", ")) : "");
  const LabelOf kind = out_.task == kNumber    ? LabelOf::score
                       : out_.task == kSeveral ? LabelOf::multi_label
                                               : LabelOf::one_class;
  std::vector<std::string> labels;
  const std::vector<LabelledText> all = read_texts(data, LabelSplit::train, kind, o_.cancel);
  for (const LabelledText& one : all)
    labels.insert(labels.end(), one.labels.begin(), one.labels.end());
  Json objective = {{"type", out_.task == kNumber ? "regression" : "classification"}};
  if (out_.task != kNumber) objective["labels"] = classes_of(labels, std::ssize(all));
  if (out_.task == kSeveral) objective["multi_label"] = true;
  say_export(objective);
  recipe_["objective"] = std::move(objective);
  constexpr int64_t kMostTokens = 4096;
  const int64_t limit = spec_.longest_sequence();
  length_ = o_.length.value_or(shape ? embed.tokens(*shape) : limit > 0 ? limit : kMostTokens);
  hold_out(std::ssize(all));
  batch_ = o_.batch.value_or(32);
  samples_ = std::ssize(all);
}

void Planner::plan_pairs() {
  LabelFormat format = LabelFormat::jsonl;
  for (const std::string& path : o_.data) format = keyed_format(path);
  const Peek data = peek();
  names_ = data.names;
  say_format();
  const std::string source = role(o_.text, kSources, "text"),
                    target = role(o_.label, kTargets, "label");
  if (source.empty()) missing("text", "the source");
  if (target.empty()) missing("label", "the target");
  say("task: sequence to sequence, source \"{}\", target \"{}\" ({}, {})", source, target,
      option("text"), option("label"));
  say("first example: {} -> {}", shown_text(data.some.front(), source),
      shown_text(data.some.front(), target));
  data_["format"] = spec::enum_name(format);
  data_["source_key"] = source;
  data_["text_key"] = target;
  if (spec_.mask) recipe_["objective"] = {{"type", "mask_predict"}};
  std::vector<int64_t> lengths;  // of the longer text, special tokens included
  for (const std::string& path : o_.data)
    for_each_record(label_data(), path, [&](Record&& record) {
      int64_t most = 0;
      for (const std::string& key : {source, target})
        if (const Json value = record.values.value(key, Json()); value.is_string())
          most = std::max(most, std::ssize(tokenizer_->encode(value.get<std::string>(),
                                                              {.add_special = false})) +
                                    (tokenizer_->eos() ? 1 : 0));
      lengths.push_back(most);
    });
  set_length(lengths, 512);
  hold_out(std::ssize(lengths));
  batch_ = o_.batch.value_or(length_ > 256 ? 16 : 32);
  samples_ = std::ssize(lengths);
}

void Planner::plan_text() {
  const bool keyed = !text_key_.empty() || is_keyed(o_.data.front());
  if (keyed) data_["format"] = spec::enum_name(keyed_format(o_.data.front()));
  if (keyed && !(text_key_.empty() ? o_.text : text_key_).empty())
    data_["text_key"] = text_key_.empty() ? o_.text : text_key_;
  if (!spec_.causal()) {
    const auto mask = text::mask_of(*tokenizer_);
    if (!spec_.head || spec_.head.type() != "masked_lm" || !mask)
      fail(ErrorKind::usage, verb(),
           "{} is an encoder without a masked-LM head or mask token; expected labelled data, a "
           "decoder, or an encoder with both",
           o_.model);
    recipe_["objective"] = {{"type", "masked_lm"},
                            {"mask_token", std::string(tokenizer_->token(*mask))}};
  }
  set_length({}, 512);
  // extrapolates from the first part
  int64_t bytes = 0;
  for (const std::string& path : o_.data)
    bytes += static_cast<int64_t>(DataFile::of_bytes(path).bytes());
  constexpr size_t kPart = 65536;
  const DataFile file = DataFile::of_bytes(o_.data.front());
  const std::string_view part = file.text().substr(0, kPart);
  if (part.empty())
    fail(ErrorKind::input, verb(), "{}: the file is empty; expected text", o_.data.front());
  if (!keyed) say("first example: {}", shown_text(part));
  const auto tokens = static_cast<double>(tokenizer_->encode(part, {.add_special = false}).size());
  samples_ = std::max<int64_t>(
      1, static_cast<int64_t>(tokens / static_cast<double>(part.size()) *
                              static_cast<double>(bytes) / static_cast<double>(length_)));
  length_ = std::min<int64_t>(length_, std::max<int64_t>(16, static_cast<int64_t>(tokens / 20)));
  hold_out(0);
  if (o_.valid.empty() && data_.contains("valid_fraction"))
    say("validation split: the last {:.3g} % of the text (--valid FILE, --valid-fraction)",
        100 * data_["valid_fraction"].get<double>());
  batch_ = o_.batch.value_or(8);
}

}  // namespace tessera::train
