#include "tessera/train/finetune.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "tessera/base/mapped_file.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/nn/registry.h"
#include "tessera/text/answer_windows.h"
#include "tessera/text/text_pair.h"
#include "tessera/train/label_examples.h"
#include "tessera/train/start.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr const char *kClasses = "classification", *kSeveral = "multi_label",
                     *kNumber = "regression", *kWords = "tokens", *kAnswers = "questions",
                     *kTogether = "together", *kPairs = "pairs", *kChat = "chat", *kText = "text";

/// Names that columns have for a role, the likeliest first.
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
const std::vector<std::string> kSources = {"source", "src",      "input",   "question",
                                           "prompt", "document", "article", "text"};
const std::vector<std::string> kTargets = {"target",  "tgt",         "output",  "answer",
                                           "summary", "translation", "response"};
const std::vector<std::string> kWordLists = {"words", "tokens"};
const std::vector<std::string> kWordLabels = {"labels", "ner_tags", "tags", "pos_tags",
                                              "chunk_tags"};

std::string first_of(const std::vector<std::string>& wanted,
                     const std::vector<std::string>& known) {
  for (const std::string& name : wanted)
    if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  return "";
}

/// What is known of the data before they are read whole.
struct Peek {
  std::vector<std::string> names;  // columns or keys of the first example
  std::vector<Json> some;          // the first examples
};

class Planner {
 public:
  explicit Planner(const FinetuneOptions& options) : o_(options) {}

  FinetunePlan plan() {
    open_model();
    if (o_.data.empty()) fail(ErrorKind::usage, "finetune", "no file; expected --data FILE");
    data_["train"] = o_.data;
    if (!o_.valid.empty()) data_["valid"] = o_.valid;
    if (!o_.labels.empty()) data_["train_labels"] = o_.labels;
    if (!o_.format.empty()) data_["format"] = o_.format;
    if (!o_.columns.empty()) data_["columns"] = o_.columns;
    if (!o_.separator.empty()) {
      data_["separator"] = o_.separator;
      // the text behind the other columns holds separators too
      if (std::ssize(o_.columns) > 1 && o_.separator == " ")
        data_["max_splits"] = std::ssize(o_.columns) - 1;
      if (o_.format.empty()) data_["format"] = "tsv";
    }
    out_.task = o_.task;
    if (spec_.encoder && !out_.task.empty() && out_.task != kPairs)
      fail(ErrorKind::usage, "finetune", "--task {}: {} is an encoder_decoder; expected {}",
           out_.task, o_.model, kPairs);
    if (!spec_.encoder && out_.task == kPairs)
      fail(ErrorKind::usage, "finetune",
           "--task {}: {} has no encoder beside it; expected an encoder_decoder, or another task",
           kPairs, o_.model);
    if (spec_.encoder) {
      out_.task = kPairs;
      plan_pairs();
      plan_training();
      return std::move(out_);
    }
    if (out_.task.empty() || (out_.task != kText && out_.task != kChat)) guess();
    if (out_.task == kText)
      plan_text();
    else if (out_.task == kChat)
      plan_chat();
    else if (out_.task == kTogether)
      plan_together();
    else
      plan_labels();
    plan_training();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    out_.said.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void open_model() {
    nn::register_mechanisms();
    const fs::path from = start_of(o_.model);
    const convert::Checkpoint checkpoint = convert::load_checkpoint(from);
    spec_ = checkpoint.spec;
    for (const format::TensorView& tensor : checkpoint.tensors) {
      int64_t n = 1;
      for (const int64_t size : tensor.shape) n *= size;
      parameters_ += n;
    }
    tokenizer_.emplace(
        convert::find_tokenizer(tokenizer_of_start(from), static_cast<int32_t>(spec_.vocab)));
    recipe_["init"] = {{"from", fs::absolute(o_.model).lexically_normal().string()}};
  }

  LabelData label_data() const {
    LabelData data;
    data.train = o_.data;
    data.valid = o_.valid;
    data.train_labels = o_.labels;
    data.columns = o_.columns;
    data.separator = o_.separator;
    data.max_splits = data_.value("max_splits", int64_t{0});
    if (const Json format = data_.value("format", Json()); format.is_string())
      spec::detail::read_value(format, data.format, {}, spec::Scope().at("--format"));
    for (const auto& [key, to] :
         {std::pair("text_key", &data.text_key), std::pair("text_b_key", &data.text_b_key),
          std::pair("label_key", &data.label_key), std::pair("score_key", &data.score_key),
          std::pair("words_key", &data.words_key), std::pair("labels_key", &data.labels_key)})
      if (data_.contains(key)) *to = data_[key].get<std::string>();
    check_label_data(data, "data");
    return data;
  }

  /// The first examples; a JSON file of SQuAD is told by its one list.
  Peek peek() {
    const std::string& path = o_.data.front();
    if (o_.format.empty() && path.ends_with(".json")) {
      const auto file = MappedFile::open(path);
      const std::string_view head(reinterpret_cast<const char*>(file->bytes().data()),
                                  std::min<size_t>(file->bytes().size(), 4096));
      const size_t first = head.find_first_not_of(" \t\r\n");
      if (first != head.npos && head[first] == '{' && head.find("\"paragraphs\"") != head.npos)
        data_["format"] = "squad";
    }
    struct Enough {};
    Peek out;
    try {
      for_each_record(label_data(), path, [&](Record&& record) {
        if (out.some.empty())
          for (const auto& [key, value] : record.values.items()) out.names.push_back(key);
        out.some.push_back(std::move(record.values));
        if (out.some.size() == 1000) throw Enough();
      });
    } catch (const Enough&) {
    }
    if (out.some.empty())
      fail(ErrorKind::input, "finetune", "{}: no example; expected at least one", path);
    return out;
  }

  bool is_plain_text() const {
    const std::string& path = o_.data.front();
    return o_.labels.empty() && o_.columns.empty() && o_.format.empty() && path.ends_with(".txt");
  }

  /// The value of a role: what was given, else the first known name that the data have.
  std::string role(const std::string& given,
                   const std::vector<std::string>& usual,
                   const char* option) {
    if (given.empty()) return first_of(usual, names_);
    if (std::find(names_.begin(), names_.end(), given) == names_.end())
      fail(ErrorKind::usage, "finetune", "--{} {}: {} has {}; expected one of these", option, given,
           o_.data.front(), fmt::join(names_, ", "));
    return given;
  }

  void guess() {
    if (is_plain_text() && o_.task.empty()) {
      out_.task = kText;
      say("task: {} has text alone, to go on with it (--task; --labels FILE or --columns for "
          "labelled lines)",
          o_.data.front());
      return;
    }
    const Peek data = peek();
    names_ = data.names;
    const auto has = [&](const std::string& name) {
      return std::find(names_.begin(), names_.end(), name) != names_.end();
    };
    std::string task = o_.task;
    if (task.empty() && has("messages")) task = kChat;
    if (task.empty() && has("context") && has("question")) task = kAnswers;
    if (task.empty() && !first_of(kPositives, names_).empty() && o_.label.empty() &&
        o_.labels.empty())
      task = kTogether;
    const std::string words = first_of(kWordLists, names_);
    if (task.empty() && !words.empty() && data.some.front()[words].is_array()) task = kWords;
    if (!task.empty()) out_.task = task;
    if (task == kAnswers || task == kChat) {
      if (o_.task.empty())
        say("task: {} has {} (--task)", o_.data.front(),
            task == kChat ? "messages: answers of conversations" : "questions about a context");
      return;
    }
    if (task == kTogether) {
      guess_together();
      return;
    }
    if (task == kWords) {
      if (!words.empty()) data_["words_key"] = words;
      const std::string labels = role(o_.label, kWordLabels, "label");
      if (labels.empty()) missing("label", "the labels of words");
      data_["labels_key"] = labels;
      say("task: classes of the words in \"{}\", from \"{}\" (--task, --label)",
          words.empty() ? "words" : words, labels);
      return;
    }
    guess_columns(data);
  }

  void guess_together() {
    if (!o_.columns.empty() || !o_.separator.empty())
      fail(ErrorKind::usage, "finetune",
           "--{} with texts that belong together; expected a first line that names the columns, in "
           "a .tsv or .csv, or a .jsonl",
           o_.columns.empty() ? "separator" : "columns");
    const std::string text = role(o_.text, kAnchors, "text"),
                      positive = role(o_.text_b, kPositives, "text-b"),
                      negatives = first_of(kNegatives, names_);
    if (text.empty()) missing("text", "the text");
    data_["text_key"] = text;
    together_ = {{"type", "contrastive"}};
    if (!positive.empty()) together_["positive_key"] = positive;
    if (!negatives.empty()) together_["negatives_key"] = negatives;
    say("task: vectors in which \"{}\" lies near {}{} (--task, --text, --text-b)", text,
        positive.empty() ? "itself under other dropout" : fmt::format("\"{}\"", positive),
        negatives.empty() ? "" : fmt::format(" and far from \"{}\"", negatives));
  }

  [[noreturn]] void missing(const char* option, const char* what) const {
    fail(ErrorKind::usage, "finetune", "no column for {}: {} has {}; expected --{} NAME{}", what,
         o_.data.front(), fmt::join(names_, ", "), option,
         o_.columns.empty() ? ", or --columns A,B where the first line holds no names" : "");
  }

  void guess_columns(const Peek& data) {
    const std::string text = role(o_.text, kTexts, "text");
    std::vector<std::string> second = kSecondTexts;
    std::erase(second, text);
    const std::string text_b = role(o_.text_b, second, "text-b");
    std::string label = o_.labels.empty() ? role(o_.label, kLabels, "label") : "";
    const std::string score =
        o_.labels.empty() && o_.label.empty() ? first_of(kScores, names_) : "";
    const bool by_score = label.empty() && !score.empty();
    if (label.empty() && by_score) label = score;
    if (text.empty()) missing("text", "the text");
    if (label.empty() && o_.labels.empty()) {
      if (out_.task.empty() && names_.size() == 1 && data.some.front()[text].is_string()) {
        out_.task = kText;
        text_key_ = text;
        say("task: {} has \"{}\" alone, to go on with it (--task)", o_.data.front(), text);
        return;
      }
      missing("label", "the label");
    }
    data_["text_key"] = text;
    if (!text_b.empty()) data_["text_b_key"] = text_b;
    if (out_.task.empty()) out_.task = by_values(data, label);
    if (!label.empty()) data_[out_.task == kNumber ? "score_key" : "label_key"] = label;
    say("task: {} of \"{}\"{}, from {} (--task, --text, --text-b, --label)", described(), text,
        text_b.empty() ? "" : fmt::format(" and \"{}\"", text_b),
        label.empty() ? "a file of labels" : fmt::format("\"{}\"", label));
  }

  std::string described() const {
    if (out_.task == kNumber) return "a number";
    return out_.task == kSeveral ? "any number of classes" : "the class";
  }

  /// What the values of a label are.
  std::string by_values(const Peek& data, const std::string& label) const {
    bool lists = false, fractions = false, numbers = true;
    for (const Json& one : data.some) {
      const Json value = label.empty() ? Json() : one.value(label, Json());
      lists = lists || value.is_array();
      std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      char* end = nullptr;
      const double number = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != '\0')
        numbers = false;
      else
        fractions = fractions || number != std::floor(number);
    }
    return lists ? kSeveral : numbers && fractions ? kNumber : kClasses;
  }

  /// Reads all examples, for classes and lengths.
  void plan_labels() {
    const LabelData data = label_data();
    std::vector<std::string> labels;
    std::vector<int64_t> lengths;
    const bool words = out_.task == kWords, answers = out_.task == kAnswers;
    int64_t n = 0;
    if (answers) {
      n = std::ssize(read_questions(data, LabelSplit::train, o_.cancel));
    } else if (words) {
      const text::WordTokens tokens(*tokenizer_);
      for (const LabelledWords& one : read_words(data, LabelSplit::train, o_.cancel)) {
        labels.insert(labels.end(), one.labels.begin(), one.labels.end());
        int64_t length = text::tokens_around(*tokenizer_, false);
        for (size_t i = 0; i < one.words.size(); ++i)
          length += std::ssize(tokens.of(one.words[i], i == 0));
        lengths.push_back(length);
        ++n;
      }
    } else {
      const LabelOf kind = out_.task == kNumber    ? LabelOf::score
                           : out_.task == kSeveral ? LabelOf::several_classes
                                                   : LabelOf::one_class;
      for (const LabelledText& one : read_texts(data, LabelSplit::train, kind, o_.cancel)) {
        labels.insert(labels.end(), one.labels.begin(), one.labels.end());
        lengths.push_back(std::ssize(
            text::judged_text(
                *tokenizer_, one.text,
                one.text_b.empty() ? std::nullopt : std::optional<std::string_view>(one.text_b), 0)
                .ids));
        ++n;
      }
    }
    Json objective = {{"type", answers                ? "question_answering"
                               : words                ? "token_classification"
                               : out_.task == kNumber ? "regression"
                                                      : "classification"}};
    if (!answers && out_.task != kNumber) objective["labels"] = classes_of(labels, n);
    if (out_.task == kSeveral) objective["multi_label"] = true;
    if (const std::string pool = words || answers ? "" : own_pooling();
        pool == "mean" || pool == "max") {
      objective["pool"] = pool;
      say("texts are pooled as the model was made to: {} (objective.pool)", pool);
    }
    set_length(lengths, answers);
    if (answers) objective["stride"] = std::min<int64_t>(128, length_ / 3);
    recipe_["objective"] = std::move(objective);
    hold_out(n);
    batch_ = o_.batch.value_or(length_ > 256 ? 16 : 32);
    samples_ = n;
  }

  std::vector<std::string> classes_of(const std::vector<std::string>& labels, int64_t n) {
    if (labels.empty()) fail(ErrorKind::input, "finetune", "no example has a label; expected some");
    std::vector<std::string> names = ClassNames::of(labels).names();
    constexpr int64_t kMany = 1000;
    if (std::ssize(names) > kMany ||
        (out_.task != kWords && std::ssize(names) > std::max<int64_t>(20, n / 2)))
      fail(ErrorKind::usage, "finetune",
           "{} different labels in {} examples; expected classes (--task regression for numbers, "
           "--label for another column)",
           names.size(), n);
    if (names.size() < 2 && out_.task != kSeveral)
      fail(ErrorKind::usage, "finetune",
           "every label is \"{}\"; expected at least two classes (--label for another column)",
           names.front());
    // the order of a model that has these classes already
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

  /// How sentence-transformers pool; "" for other folders.
  std::string own_pooling() const {
    const fs::path config = start_of(o_.model) / "1_Pooling" / "config.json";
    if (!fs::is_regular_file(config)) return "";
    const Json says = spec::read_json_file(config);
    const auto on = [&](const char* key) {
      return says.is_object() && says.value(key, Json(false)) == Json(true);
    };
    if (on("pooling_mode_mean_tokens")) return "mean";
    if (on("pooling_mode_max_tokens")) return "max";
    if (on("pooling_mode_cls_token")) return "cls";
    return "";
  }

  void set_length(const std::vector<int64_t>& lengths, bool answers) {
    int64_t most = answers ? 384 : 512;
    if (const int64_t limit = spec_.longest_sequence(); limit > 0) most = std::min(most, limit);
    length_ = most;
    if (!lengths.empty())
      length_ = std::min(most, *std::max_element(lengths.begin(), lengths.end()));
    if (o_.length) length_ = *o_.length;
    const auto cut = std::count_if(lengths.begin(), lengths.end(),
                                   [&](int64_t length) { return length > length_; });
    say("length: {} tokens{} (--length)", length_,
        cut > 0 ? fmt::format(", to which {} of {} examples are cut", cut, lengths.size()) : "");
  }

  void hold_out(int64_t n) {
    if (!o_.valid.empty()) return;
    const double fraction = o_.valid_fraction.value_or(0.1);
    if (fraction <= 0) {
      say("nothing is held out, so that nothing measures the result (--valid FILE)");
      return;
    }
    data_["valid_fraction"] = fraction;
    if (n > 0)
      say("held out: {:.3g} % of the examples (--valid FILE, --valid-fraction)", 100 * fraction);
  }

  /// Reads all examples, for their lengths.
  void plan_together() {
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
    std::string pool = own_pooling();
    if (pool.empty()) pool = spec_.pooler ? "pooler" : "mean";
    together_["pooling"] = pool;
    say("the vector of a text: {} (objective.pooling)", pool);
    recipe_["objective"] = together_;
    // this data's format is told by the names of its files
    if (data_.value("format", Json("")) != Json("jsonl")) data_.erase("format");
    set_length(lengths, false);
    hold_out(n);
    batch_ = o_.batch.value_or(std::min<int64_t>(64, std::max<int64_t>(2, n / 4)));
    samples_ = n;
    say("every text has the {} others of its batch as negatives (--batch)", batch_ - 1);
  }

  /// Sources and what is answered to them.
  void plan_pairs() {
    for (const std::string& path : o_.data)
      if (o_.format != "jsonl" && !path.ends_with(".jsonl"))
        fail(ErrorKind::usage, "finetune",
             "{}: an encoder_decoder learns from pairs; expected JSON lines (.jsonl) with a source "
             "and a text each",
             path);
    names_ = peek().names;
    const std::string source = role(o_.text, kSources, "text"),
                      target = role(o_.label, kTargets, "label");
    if (source.empty()) missing("text", "the source");
    if (target.empty()) missing("label", "what is answered");
    say("task: \"{}\" as the answer to \"{}\" (--label, --text)", target, source);
    data_["format"] = "jsonl";
    data_["source_key"] = source;
    data_["text_key"] = target;
    if (spec_.mask) recipe_["objective"] = {{"type", "mask_predict"}};
    std::vector<int64_t> lengths;  // of the longer one, with what ends it
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
    set_length(lengths, false);
    hold_out(std::ssize(lengths));
    batch_ = o_.batch.value_or(length_ > 256 ? 16 : 32);
    samples_ = std::ssize(lengths);
  }

  void plan_chat() {
    if (spec_.causal() == false)
      fail(ErrorKind::usage, "finetune", "{} is an encoder, which says nothing; expected a decoder",
           o_.model);
    recipe_["objective"] = {{"type", "chat"}};
    if (tokenizer_->chat_template().empty()) {
      std::string format = "zephyr";
      for (const auto& [token, name] :
           {std::pair("<|im_start|>", "chatml"), std::pair("<|start_header_id|>", "llama3"),
            std::pair("<start_of_turn>", "gemma")})
        if (tokenizer_->id(token)) {
          format = name;
          break;
        }
      recipe_["objective"]["format"] = format;
      say("conversations are written as \"{}\", as the tokenizer has no template of its own "
          "(objective.format)",
          format);
    }
    data_["format"] = "jsonl";
    int64_t n = 0;
    LabelData data;
    data.format = LabelFormat::jsonl;
    for (const std::string& path : o_.data) for_each_record(data, path, [&](Record&&) { ++n; });
    set_length({}, false);
    hold_out(n);
    batch_ = o_.batch.value_or(8);
    samples_ = n;
  }

  void plan_text() {
    const bool jsonl = !text_key_.empty() || o_.data.front().ends_with(".jsonl");
    if (jsonl) data_["format"] = "jsonl";
    if (jsonl && !(text_key_.empty() ? o_.text : text_key_).empty())
      data_["text_key"] = text_key_.empty() ? o_.text : text_key_;
    if (!spec_.causal()) {
      const auto mask = tokenizer_->id("[MASK]") ? "[MASK]" : "<mask>";
      if (!spec_.head || spec_.head.type() != "masked_lm" || !tokenizer_->id(mask))
        fail(ErrorKind::usage, "finetune",
             "{} is an encoder without a head for hidden tokens, or without a mask; expected "
             "labelled data, a decoder, or an encoder with such a head",
             o_.model);
      recipe_["objective"] = {{"type", "masked_lm"}, {"mask_token", mask}};
    }
    set_length({}, false);
    // tokens of the first part tell those of all
    int64_t bytes = 0;
    for (const std::string& path : o_.data) bytes += std::ssize(MappedFile::open(path)->bytes());
    const auto file = MappedFile::open(o_.data.front());
    constexpr size_t kPart = 65536;
    const std::string_view part(reinterpret_cast<const char*>(file->bytes().data()),
                                std::min(kPart, file->bytes().size()));
    if (part.empty())
      fail(ErrorKind::input, "finetune", "{}: the file is empty; expected text", o_.data.front());
    const auto tokens =
        static_cast<double>(tokenizer_->encode(part, {.add_special = false}).size());
    samples_ = std::max<int64_t>(
        1, static_cast<int64_t>(tokens / static_cast<double>(part.size()) *
                                static_cast<double>(bytes) / static_cast<double>(length_)));
    length_ = std::min<int64_t>(length_, std::max<int64_t>(16, static_cast<int64_t>(tokens / 20)));
    hold_out(0);
    if (o_.valid.empty() && data_.contains("valid_fraction"))
      say("held out: the last {:.3g} % of the text (--valid FILE, --valid-fraction)",
          100 * data_["valid_fraction"].get<double>());
    batch_ = o_.batch.value_or(8);
  }

  void plan_training() {
    // absolute, so that the recipe may stand anywhere
    for (const char* key : {"train", "valid", "train_labels"})
      if (data_.contains(key))
        for (Json& path : data_[key])
          path = fs::absolute(path.get<std::string>()).lexically_normal().string();
    const double held = data_.value("valid_fraction", 0.0);
    const double learned = std::max(1.0, static_cast<double>(samples_) * (1 - held));
    const double steps_an_epoch = std::max(1.0, learned / static_cast<double>(batch_));
    constexpr double kFewSteps = 200, kMostEpochs = 20;
    const double epochs = o_.epochs.value_or(
        std::max(3.0, std::min(kMostEpochs, std::ceil(kFewSteps / steps_an_epoch))));
    const int64_t steps = o_.steps.value_or(
        std::max<int64_t>(1, static_cast<int64_t>(std::ceil(epochs * steps_an_epoch))));
    const double lr = o_.lr.value_or(usual_rate());
    say("{} steps of {} ({:.3g} epochs), rate {:.2g} (--steps, --epochs, --batch, --lr)", steps,
        batch_, static_cast<double>(steps) / steps_an_epoch, lr);
    recipe_["data"] = data_;
    recipe_["train"] = {
        {"steps", steps},
        {"batch", batch_},
        {"length", length_},
        {"seed", o_.seed},
        {"eval_every",
         std::max<int64_t>(1, static_cast<int64_t>(std::llround(
                                  std::max(steps_an_epoch, static_cast<double>(steps) / 10))))},
        {"log_every", std::max<int64_t>(1, std::min<int64_t>(10, steps / 20))}};
    recipe_["optimizer"] = {{"type", "adamw"}, {"lr", lr}, {"weight_decay", 0.01}};
    recipe_["schedule"] = {{"type", "linear"}, {"warmup", steps / 10}, {"final_fraction", 0}};
    if (!o_.adapter.empty()) {
      recipe_["adapter"] = {{"type", o_.adapter}};
      if (is_product()) {
        recipe_["adapter"]["rank"] = o_.rank;
        recipe_["adapter"]["alpha"] = 2 * o_.rank;
      }
    }
    if (o_.head_only || o_.last > 0) freeze();
    out_.recipe = std::move(recipe_);
  }

  bool is_product() const { return o_.adapter == "lora" || o_.adapter == "dora"; }

  double usual_rate() const {
    const double whole = parameters_ < 50'000'000 ? 1e-4 : parameters_ < 200'000'000 ? 5e-5 : 2e-5;
    if (is_product()) return 10 * whole;
    return !o_.adapter.empty() || o_.head_only ? 100 * whole : whole;
  }

  void freeze() {
    const int64_t n = std::ssize(spec_.layers);
    if (o_.last > n)
      fail(ErrorKind::usage, "finetune", "--last {}: the model has {} layers", o_.last, n);
    Json learn = {"head.*", "pooler.*"};
    if (o_.last > 0) {
      learn.push_back(spec_.under("final_norm.*"));
      for (int64_t i = n - o_.last; i < n; ++i)
        learn.push_back(spec_.under(fmt::format("layers.{}.*", i)));
    }
    recipe_["optimizer"]["groups"] = {{{"match", std::move(learn)}},
                                      {{"match", {"*"}}, {"frozen", true}}};
  }

  const FinetuneOptions& o_;
  FinetunePlan out_;
  Json recipe_ = Json::object(), data_ = Json::object(), together_ = Json::object();
  model::ModelSpec spec_;
  std::optional<text::Tokenizer> tokenizer_;
  std::vector<std::string> names_;  // columns or keys of the data
  std::string text_key_;            // of text alone in jsonl
  int64_t parameters_ = 0, length_ = 0, batch_ = 0, samples_ = 0;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> finetune_tasks() {
  return {{kClasses, "a class of a text, or of a pair"},
          {kSeveral, "any number of classes of a text"},
          {kNumber, "a number of a text, or of a pair"},
          {kWords, "a class of every word"},
          {kAnswers, "where an answer stands in a context"},
          {kTogether, "vectors in which a text lies near its \"positive\""},
          {kPairs, "of an encoder_decoder: the text that answers a source"},
          {kChat, "answers of conversations"},
          {kText, "to go on with a text"}};
}

FinetunePlan plan_finetune(const FinetuneOptions& options) {
  if (!options.task.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, what] : finetune_tasks()) names.push_back(name);
    if (std::find(names.begin(), names.end(), options.task) == names.end())
      fail(ErrorKind::usage, "finetune", "--task {}; expected one of {}", options.task,
           fmt::join(names, ", "));
  }
  return Planner(options).plan();
}

}  // namespace tessera::train
