#include "tessera/train/recipe/finetune.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/ranges.h>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/sentence_modules.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/file_source.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/nn/registry.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/recipe/finetune_planner.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/recipe/start.h"
#include "tessera/train/recipe/task_head.h"

namespace tessera::train {

namespace fs = std::filesystem;

std::string plain_name(std::string_view name) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t begin = std::min(name.find_first_not_of(kBlanks), name.size());
  std::string out(name.substr(begin, name.find_last_not_of(kBlanks) + 1 - begin));
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string first_of(const std::vector<std::string>& wanted,
                     const std::vector<std::string>& known) {
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) != known.end()) return name;
    const auto found = std::find_if(known.begin(), known.end(), [&](const std::string& own) {
      return plain_name(own) == name;
    });
    if (found != known.end()) return *found;
  }
  return "";
}

std::string excerpt(std::string_view text) {
  constexpr size_t kMost = 200;
  if (text.size() <= kMost) return std::string(text);
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

FinetunePlan Planner::plan() {
  open_model();
  if (o_.data.empty()) fail(ErrorKind::usage, verb(), "no file; expected --data FILE");
  data_["train"] = o_.data;
  if (!o_.valid.empty()) data_["valid"] = o_.valid;
  if (!o_.labels.empty()) data_["train_labels"] = o_.labels;
  if (o_.measured != nullptr) {
    data_["valid"] = o_.data;
    if (!o_.labels.empty()) data_["valid_labels"] = o_.labels;
  }
  if (!o_.format.empty()) data_["format"] = o_.format;
  if (!o_.columns.empty()) data_["columns"] = o_.columns;
  if (!o_.separator.empty()) {
    data_["separator"] = o_.separator;
    // the last column's text may contain separators
    if (std::ssize(o_.columns) > 1 && o_.separator == " ")
      data_["max_splits"] = std::ssize(o_.columns) - 1;
    // quoted cells are csv
    if (o_.format.empty()) data_["format"] = o_.data.front().ends_with(".csv") ? "csv" : "tsv";
  }
  out_.task = o_.task;
  if (benchmark_ != nullptr) set_benchmark();
  if (spec_.encoder && !out_.task.empty() && out_.task != kPairs)
    fail(ErrorKind::usage, verb(), "--task {}: {} is an encoder_decoder; expected {}", out_.task,
         o_.model, kPairs);
  if (!spec_.encoder && out_.task == kPairs)
    fail(ErrorKind::usage, verb(),
         "--task {}: {} is no encoder_decoder; expected one, or another task", kPairs, o_.model);
  if (reads_features()) {
    plan_features();
    plan_training();
    return std::move(out_);
  }
  if (spec_.encoder) {
    out_.task = kPairs;
    plan_pairs();
    plan_training();
    return std::move(out_);
  }
  if (out_.task != kText) infer_task();
  if (out_.task == kText)
    plan_text();
  else if (out_.task == kChat)
    plan_chat();
  else if (out_.task == kPreference)
    plan_preference();
  else if (out_.task == kTogether)
    plan_together();
  else if (out_.task == kSimilarity)
    plan_similarity();
  else
    plan_labels();
  plan_training();
  return std::move(out_);
}

std::string Planner::option(std::string_view name) const {
  // in eval, --text and the like are texts to evaluate
  const bool column = name == "text" || name == "text-b" || name == "label";
  return fmt::format("--{}{}", name, column && o_.measured != nullptr ? "-key" : "");
}

std::string Planner::key_of_recipe(std::string_view key) const {
  return o_.measured != nullptr ? "" : fmt::format(" ({})", key);
}

void Planner::refuse_adapter() const {
  const fs::path place = convert::checkpoint_place(o_.model);
  const bool run = fs::exists(place / "adapter.safetensors");
  if (!run && !fs::exists(place / "adapter_config.json")) return;
  for (const char* name : {"config.json", "model.safetensors"})
    if (fs::exists(place / name)) return;
  const std::string start = start_of_run(o_.model), base = start.empty() ? "BASE" : start;
  const std::string resume = fmt::format(
      ", or train that run longer (tessera finetune {} --data FILE --out {} --resume --steps N)",
      base, o_.model);
  fail(ErrorKind::usage, verb(),
       "{} is an adapter; expected a model: merge it (tessera convert {} --merge-adapter {} --out "
       "MERGED) and fine-tune MERGED{}",
       o_.model, base, o_.model, run ? resume : "");
}

void Planner::open_model() {
  nn::register_mechanisms();
  const auto take_tokenizer = [&] {
    if (reads_features()) return;
    tokenizer_.emplace(
        convert::find_tokenizer(tokenizer_of_start(o_.model), static_cast<int32_t>(spec_.vocab)));
  };
  if (o_.measured != nullptr) {  // the caller has opened it
    spec_ = *o_.measured;
    take_tokenizer();
    recipe_["spec"] = model::resolve(spec_);
    if (!reads_features()) data_["tokenizer"] = tokenizer_of_start(o_.model);
    return;
  }
  refuse_adapter();
  InitRecipe init;
  init.from = o_.model;
  init.ignore_keys = o_.ignore_keys;
  const convert::Checkpoint checkpoint = load_start(init);
  for (const std::string& remark : checkpoint.remarks) say("{}", remark);
  origin_.spec = checkpoint.spec;
  origin_.spec_json = checkpoint.spec_json;
  origin_.family = checkpoint.family;
  origin_.foreign_config = checkpoint.foreign_config;
  origin_.foreign_dialect = checkpoint.foreign_dialect;
  spec_ = checkpoint.spec;
  for (const format::TensorView& tensor : checkpoint.tensors) {
    int64_t n = 1;
    for (const int64_t size : tensor.shape) n *= size;
    parameters_ += n;
  }
  take_tokenizer();
  recipe_["init"] = {{"from", fs::absolute(o_.model).lexically_normal().string()}};
  if (!o_.ignore_keys.empty()) recipe_["init"]["ignore_keys"] = o_.ignore_keys;
}

bool Planner::reads_features() const {
  return dynamic_cast<const nn::FeatureEmbedConfig*>(spec_.embed.config.get()) != nullptr;
}

LabelData Planner::label_data() const {
  LabelData data;
  data.has_features = data_.contains("file_key");
  data.train = o_.data;
  data.valid = o_.valid;
  data.train_labels = o_.labels;
  data.columns = o_.columns;
  data.separator = o_.separator;
  data.max_splits = data_.value("max_splits", int64_t{0});
  data.skip_incomplete = data_.value("skip_incomplete", false);
  if (benchmark_ != nullptr) data.layout = benchmark_->layout;
  if (data_.contains("columns")) data.columns = data_["columns"].get<std::vector<std::string>>();
  if (const Json format = data_.value("format", Json()); format.is_string())
    spec::detail::read_value(format, data.format, {}, spec::Scope().at("--format"));
  for (const auto& [key, to] :
       {std::pair("text_key", &data.text_key), std::pair("text_b_key", &data.text_b_key),
        std::pair("label_key", &data.label_key), std::pair("score_key", &data.score_key),
        std::pair("words_key", &data.words_key), std::pair("labels_key", &data.labels_key),
        std::pair("file_key", &data.file_key)})
    if (data_.contains(key)) *to = data_[key].get<std::string>();
  check_label_data(data, "data");
  return data;
}

Peek Planner::peek() {
  const std::string& path = o_.data.front();
  if (o_.format.empty() && path.ends_with(".json")) {
    const DataFile file(path);
    const std::string_view head = file.text().substr(0, 4096);
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
    fail(ErrorKind::input, verb(), "{}: no example; expected at least one", path);
  return out;
}

bool Planner::is_plain_text() const {
  const std::string& path = o_.data.front();
  return o_.labels.empty() && o_.columns.empty() && o_.format.empty() && path.ends_with(".txt");
}

namespace {

std::optional<LabelFormat> keyed_by_name(const std::string& path) {
  for (const char* ending : {".jsonl", ".json", ".ndjson", ".tsv", ".csv"})
    if (path.ends_with(ending)) return LabelData().format_of(path);
  return std::nullopt;
}

}  // namespace

bool Planner::is_keyed(const std::string& path) const {
  const std::string format = data_.value("format", std::string());
  if (format.empty()) return keyed_by_name(path).has_value();
  return format == "jsonl" || format == "tsv" || format == "csv";
}

LabelFormat Planner::keyed_format(const std::string& path) const {
  const char* expected =
      "JSON lines, one list of objects, or a .csv or .tsv whose first line names "
      "its columns";
  if (!o_.columns.empty() || !o_.separator.empty())
    fail(ErrorKind::usage, verb(), "--{} with task {}; expected {}",
         o_.columns.empty() ? "separator" : "columns", out_.task, expected);
  if (!is_keyed(path))
    fail(ErrorKind::usage, verb(), "{}: task {} reads {} (--format)", path, out_.task, expected);
  // the recipe's format is that of the first file; that of the others follows from their names
  const auto format_of = [&](const std::string& file) {
    const std::optional<LabelFormat> named = o_.format.empty() ? keyed_by_name(file) : std::nullopt;
    return named ? *named : label_data().format_of(file);
  };
  const LabelFormat own = format_of(path), first = format_of(o_.data.front());
  if (own != first)
    fail(ErrorKind::usage, verb(), "{} is {} and {} is {}; expected files of one format", path,
         spec::enum_name(own), o_.data.front(), spec::enum_name(first));
  return own;
}

std::string Planner::role(const std::string& given,
                          const std::vector<std::string>& usual,
                          const char* option) {
  if (given.empty()) return first_of(usual, names_);
  if (std::find(names_.begin(), names_.end(), given) == names_.end())
    fail(ErrorKind::usage, verb(), "{} {}: {} has {}; expected one of these", this->option(option),
         given, o_.data.front(), fmt::join(names_, ", "));
  return given;
}

namespace {

/// The actual separator of a header that was read as one name; "" if it is one.
std::string separator_in(const std::string& header) {
  for (const std::string_view separator : {";", "\t", "|", ","})
    if (header.find(separator) != std::string::npos) return std::string(separator);
  return "";
}

}  // namespace

void Planner::missing(const char* option, const char* what) const {
  if (const std::string separator = names_.size() == 1 ? separator_in(names_.front()) : "";
      !separator.empty() && o_.separator.empty())
    fail(ErrorKind::usage, verb(), "no column for {}: {} has one column, {}; expected {}", what,
         o_.data.front(), format::in_quotes(excerpt(names_.front())),
         separator == "\t"  ? "--format tsv"
         : separator == "," ? "--format csv"
                            : fmt::format("--separator '{}'", separator));
  fail(ErrorKind::usage, verb(), "no column for {}: {} has {}; name it with {} NAME{}", what,
       o_.data.front(), fmt::join(names_, ", "), this->option(option),
       o_.columns.empty() ? ", or --columns A,B where the first line holds no names" : "");
}

std::string Planner::own_pooling() const {
  const std::vector<convert::Pooling> own =
      convert::poolings_of_folder(convert::checkpoint_place(o_.model));
  if (own.size() != 1) return "";  // several modes have no equivalent in a head
  const std::string name = convert::name_of(own.front());
  const bool end = spec_.causal() ? name == "last" : name == "cls";
  return name == "mean" || name == "max" || end ? name : "";
}

std::string Planner::modules_left_out() const {
  std::vector<std::string> names;
  for (const convert::SentenceLayer& layer : convert::sentence_modules_of(o_.model).layers)
    if (layer.kind != convert::SentenceLayer::Kind::normalize)
      names.emplace_back(layer.kind == convert::SentenceLayer::Kind::dense ? "Dense" : "LayerNorm");
  return fmt::format("{}", fmt::join(names, ", "));
}

void Planner::say_export(const Json& objective) {
  if (o_.measured != nullptr || origin_.family.empty() || !convert::why_not_hf(origin_).empty())
    return;
  convert::Checkpoint then = origin_;
  then.spec = model::read_model_spec(with_task_head(origin_.spec_json, objective, true).spec);
  then.spec_json = model::resolve(then.spec);
  const std::string why = convert::why_not_hf(then);
  if (why.empty()) return;
  say("with this head the model cannot be exported to Hugging Face format (convert --to hf): {}{}",
      why,
      objective.contains("pool") ? " (--set objective.pool=null takes the pooler of its class)"
                                 : "");
}

void Planner::set_length(const std::vector<int64_t>& lengths, int64_t most) {
  // evaluation uses whole texts, up to the model's maximum
  constexpr int64_t kNoLimit = int64_t{1} << 20;
  if (o_.measured != nullptr && !lengths.empty()) most = kNoLimit;
  if (const int64_t limit = spec_.longest_sequence(); limit > 0) most = std::min(most, limit);
  length_ = most;
  if (!lengths.empty()) length_ = std::min(most, *std::max_element(lengths.begin(), lengths.end()));
  if (o_.length) length_ = *o_.length;
  const auto cut = std::count_if(lengths.begin(), lengths.end(),
                                 [&](int64_t length) { return length > length_; });
  say("maximum length: {} tokens{} (--length)", length_,
      cut > 0 ? fmt::format(", {} of {} examples truncated", cut, lengths.size()) : "");
}

void Planner::say_format(const std::string& layout) {
  const std::string& path = o_.data.front();
  const LabelFormat format = label_data().format_of(path);
  std::string shape(spec::enum_name(format));
  if (format == LabelFormat::jsonl) {
    const DataFile file(path);
    const size_t first = file.text().find_first_not_of(" \t\r\n");
    shape =
        first != std::string_view::npos && file.text()[first] == '[' ? "a JSON list" : "JSON lines";
  }
  std::vector<std::string> some(names_.begin(),
                                names_.begin() + std::min<std::ptrdiff_t>(8, std::ssize(names_)));
  say("format: {}{}", shape,
      !layout.empty() ? ", " + layout
      : some.empty()  ? ""
                      : fmt::format(" with {}{}", fmt::join(some, ", "),
                                   some.size() < names_.size() ? ", ..." : ""));
}

void Planner::hold_out(int64_t n) {
  if (!o_.valid.empty() || o_.measured != nullptr) return;
  const double fraction = o_.valid_fraction.value_or(0.1);
  if (fraction <= 0) {
    say("no validation data: the result is not evaluated (--valid FILE)");
    return;
  }
  data_["valid_fraction"] = fraction;
  if (n > 0)
    say("validation split: {:.3g} % of the examples (--valid FILE, --valid-fraction)",
        100 * fraction);
}

void Planner::plan_training() {
  // absolute, so that the recipe can be moved
  for (const char* key : {"train", "valid", "train_labels", "valid_labels"})
    if (data_.contains(key))
      for (Json& path : data_[key])
        path = fs::absolute(path.get<std::string>()).lexically_normal().string();
  if (o_.measured != nullptr) {
    recipe_["data"] = data_;
    recipe_["train"] = {{"steps", 1}, {"batch", batch_}, {"length", length_}};
    recipe_["optimizer"] = {{"type", "adamw"}};
    out_.recipe = std::move(recipe_);
    return;
  }
  const double held = data_.value("valid_fraction", 0.0);
  const double learned = std::max(1.0, static_cast<double>(samples_) * (1 - held));
  const double steps_an_epoch = std::max(1.0, learned / static_cast<double>(batch_));
  constexpr double kFewSteps = 200, kMostEpochs = 20;
  const double epochs = o_.epochs.value_or(
      std::max(3.0, std::min(kMostEpochs, std::ceil(kFewSteps / steps_an_epoch))));
  const int64_t steps = o_.steps.value_or(
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(epochs * steps_an_epoch))));
  const double lr = o_.lr.value_or(usual_rate());
  say("{} steps, batch size {}, {:.3g} epochs, learning rate {:.2g} (--steps, --batch, --epochs, "
      "--lr)",
      steps, batch_, static_cast<double>(steps) / steps_an_epoch, lr);
  recipe_["data"] = data_;
  recipe_["train"] = {
      {"steps", steps},
      {"batch", batch_},
      {"length", length_},
      {"seed", o_.seed},
      {"eval_every", std::max<int64_t>(1, static_cast<int64_t>(std::llround(std::max(
                                              steps_an_epoch, static_cast<double>(steps) / 10))))},
      {"log_every", std::max<int64_t>(1, std::min<int64_t>(10, steps / 20))}};
  // the best checkpoint represents the run's folder
  if (data_.contains("valid") || held > 0) recipe_["checkpoint"] = {{"best", 1}};
  recipe_["optimizer"] = {{"type", "adamw"}, {"lr", lr}, {"weight_decay", 0.01}};
  recipe_["schedule"] = {{"type", "linear"}, {"warmup_fraction", 0.1}, {"final_fraction", 0}};
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

double Planner::usual_rate() const {
  double whole = parameters_ < 50'000'000 ? 1e-4 : parameters_ < 200'000'000 ? 5e-5 : 2e-5;
  if (out_.task == kPreference) whole /= 10;
  if (is_product()) return 10 * whole;
  return !o_.adapter.empty() || o_.head_only ? 100 * whole : whole;
}

void Planner::freeze() {
  const int64_t n = std::ssize(spec_.layers);
  if (o_.last > n) fail(ErrorKind::usage, verb(), "--last {}: the model has {} layers", o_.last, n);
  Json learn = {"head.*", "pooler.*"};
  if (o_.last > 0) {
    learn.push_back(spec_.under("final_norm.*"));
    for (int64_t i = n - o_.last; i < n; ++i)
      learn.push_back(spec_.under(fmt::format("layers.{}.*", i)));
  }
  recipe_["optimizer"]["groups"] = {{{"match", std::move(learn)}},
                                    {{"match", {"*"}}, {"frozen", true}}};
}

std::vector<std::pair<std::string, std::string>> finetune_tasks() {
  return {{kClasses, "class of a text or text pair"},
          {kSeveral, "any number of classes per text"},
          {kNumber, "number for a text or text pair"},
          {kWords, "token classification (NER)"},
          {kAnswers, "extractive question answering"},
          {kTogether, "contrastive training of sentence embeddings"},
          {kPairs, "sequence to sequence: source, target"},
          {kChat, "supervised fine-tuning: messages, ShareGPT, Alpaca, prompt and completion"},
          {kPreference, "preference optimization (DPO): chosen, rejected"},
          {kText, "language modeling"}};
}

std::vector<std::pair<std::string, std::string>> finetune_task_aliases() {
  return {{"token_classification", kWords},
          {"ner", kWords},
          {"question_answering", kAnswers},
          {"contrastive", kTogether},
          {"seq2seq", kPairs},
          {"sft", kChat},
          {"dpo", kPreference},
          {"language_modeling", kText}};
}

FinetunePlan plan_finetune(const FinetuneOptions& options) {
  FinetuneOptions how = options;
  if (const LabelBenchmark* benchmark = find_label_benchmark(options.task)) {
    how.task = benchmark->regression ? kNumber : kClasses;
    // vectors have similarities
    if (benchmark->regression && options.measured != nullptr &&
        dynamic_cast<const nn::ClassifierConfig*>(options.measured->head.config.get()) == nullptr)
      how.task = kSimilarity;
    return Planner(how, benchmark).plan();
  }
  for (const auto& [alias, name] : finetune_task_aliases())
    if (options.task == alias) how.task = name;
  if (!how.task.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, what] : finetune_tasks()) names.push_back(name);
    if (how.measured != nullptr) names.emplace_back(kSimilarity);
    if (std::find(names.begin(), names.end(), how.task) == names.end())
      fail(ErrorKind::usage, how.measured != nullptr ? "eval" : "finetune",
           "--task {}; expected one of {}, or a benchmark: {}, ...", how.task,
           fmt::join(names, ", "), label_benchmarks().front().name);
  }
  return Planner(how).plan();
}

}  // namespace tessera::train
