#include "tessera/infer/encoders/classify.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"

namespace tessera::cli {
namespace {

struct ClassifyArgs {
  LoadFlags loading;
  std::string model, file, question;
  std::vector<std::string> adapters, texts, seconds;
  bool json = false, pairs = false;
  int64_t top = 1;
  infer::ClassifyOptions how;
  ProductFlags products;
  DeviceFlag device;
  int threads = 0;
};

/// The lines of a file that are not blank.
std::vector<std::string> texts_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

/// What is to be judged: texts, or pairs with a tab between.
std::vector<infer::ClassifierPair> pairs_of(const ClassifyArgs& o) {
  std::vector<infer::ClassifierPair> out;
  if (!o.seconds.empty() && o.seconds.size() != o.texts.size())
    fail(ErrorKind::usage, "classify", "{} times --text-b; expected {}, one for each --text",
         o.seconds.size(), o.texts.size());
  for (size_t i = 0; i < o.texts.size(); ++i)
    out.push_back({o.texts[i], o.seconds.empty() ? std::nullopt : std::optional(o.seconds[i])});
  if (o.file.empty()) return out;
  for (const std::string& line : texts_in(read_text_input(o.file, &cancel_token()))) {
    const size_t tab = o.pairs ? line.find('\t') : std::string::npos;
    if (o.pairs && tab == std::string::npos)
      fail(ErrorKind::input, "classify",
           "text {}: no tab; expected two texts on a line with --pairs", out.size() + 1);
    out.push_back(
        {line.substr(0, tab), o.pairs ? std::optional(line.substr(tab + 1)) : std::nullopt});
  }
  return out;
}

/// Classes by probability, the likeliest first.
std::vector<size_t> ranked(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < p.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  return order;
}

int judge_texts(const ClassifyArgs& o, const infer::LoadedModel& loaded) {
  const auto names = infer::class_names(loaded.model.spec());
  const auto pairs = pairs_of(o);
  const auto judged = infer::classify_texts(loaded, pairs, o.how);
  Json report = Json::array();
  for (size_t i = 0; i < judged.size(); ++i) {
    const infer::ClassPrediction& one = judged[i];
    Json entry = {{"text", pairs[i].text}};
    if (pairs[i].second) entry["text_b"] = *pairs[i].second;
    if (names.size() == 1) {
      entry["score"] = one.logits[0];
      if (!o.json) fmt::print("{:.4f}\n", one.logits[0]);
    } else {
      entry["label"] = names[one.best];
      entry["probability"] = one.probabilities[one.best];
      entry["probabilities"] = Json::object();
      std::string line;
      int64_t shown = 0;
      for (const size_t c : ranked(one.probabilities)) {
        entry["probabilities"][names[c]] = one.probabilities[c];
        const bool chosen = o.how.multi_label ? one.probabilities[c] > 0.5 : shown < o.top;
        if (chosen)
          line +=
              fmt::format("{}{}\t{:.4f}", line.empty() ? "" : "\t", names[c], one.probabilities[c]);
        ++shown;
      }
      if (o.how.multi_label) {
        entry["labels"] = Json::array();
        for (const size_t c : ranked(one.probabilities))
          if (one.probabilities[c] > 0.5) entry["labels"].push_back(names[c]);
      }
      if (!o.json) fmt::print("{}\n", line.empty() ? "-" : line);
    }
    entry["cut"] = one.cut;
    report.push_back(std::move(entry));
  }
  if (o.json) print_json(report);
  const auto cut = std::count_if(judged.begin(), judged.end(),
                                 [](const infer::ClassPrediction& one) { return one.cut; });
  if (cut > 0) fmt::print(stderr, "tessera: {} texts truncated to the maximum length\n", cut);
  return kExitOk;
}

int judge_words(const ClassifyArgs& o, const infer::LoadedModel& loaded) {
  const auto names = infer::class_names(loaded.model.spec());
  Json report = Json::array();
  bool first = true, cut = false;
  for (const infer::ClassifierPair& pair : pairs_of(o)) {
    std::vector<std::string> words;
    std::istringstream in(pair.text);
    for (std::string word; in >> word;) words.push_back(word);
    if (words.empty())
      fail(ErrorKind::input, "classify", "text {} has no word; expected some", report.size() + 1);
    Json entry = Json::array();
    if (!o.json && !first) fmt::print("\n");
    first = false;
    for (const infer::WordPrediction& word : infer::classify_words(loaded, words, o.how)) {
      cut = cut || word.cut;
      if (!o.json) fmt::print("{}\t{}\n", word.word, word.cut ? "-" : names[word.best]);
      entry.push_back({{"word", word.word},
                       {"label", word.cut ? Json() : Json(names[word.best])},
                       {"probability", word.probability}});
    }
    report.push_back(std::move(entry));
  }
  if (o.json) print_json(report);
  if (cut)
    fmt::print(stderr, "tessera: words after the maximum length have no class, shown as -\n");
  return kExitOk;
}

int find_answers(const ClassifyArgs& o, const infer::LoadedModel& loaded) {
  if (o.question.empty())
    fail(ErrorKind::usage, "classify",
         "this model does extractive question answering; expected --question Q with --text or "
         "--file");
  std::vector<std::string> contexts = o.texts;
  if (!o.file.empty()) contexts.push_back(read_text_input(o.file, &cancel_token()));
  Json report = Json::array();
  for (const std::string& context : contexts) {
    const infer::SpanAnswer answer = infer::find_answer(loaded, o.question, context, o.how);
    const std::string text =
        answer.found ? context.substr(answer.begin, answer.end - answer.begin) : "";
    if (!o.json) fmt::print("{}\t{:.4f}\n", answer.found ? text : "-", answer.probability);
    report.push_back({{"answer", answer.found ? Json(text) : Json()},
                      {"begin", answer.begin},
                      {"end", answer.end},
                      {"probability", answer.probability},
                      {"score", answer.score},
                      {"none_score", answer.none_score}});
  }
  if (o.json) print_json(report);
  return kExitOk;
}

int classify(const ClassifyArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const infer::LoadedModel loaded = o.device.loaded([&] {
    return infer::load_model(o.model, o.loading.options(), o.adapters, o.products.products());
  });
  say_differences(loaded.source);
  o.products.check(loaded.model);
  switch (infer::classification_task_of(loaded)) {
    case infer::ClassificationTask::texts:
      return judge_texts(o, loaded);
    case infer::ClassificationTask::words:
      return judge_words(o, loaded);
    case infer::ClassificationTask::answers:
      return find_answers(o, loaded);
  }
  return kExitFailed;
}

}  // namespace

std::function<int()> add_classify(CLI::App& app) {
  auto o = std::make_shared<ClassifyArgs>();
  group(app, "Input");
  add_model(app, o->model,
            "classifier or question-answering model: Hugging Face folder, or run (tessera "
            "finetune)");
  auto* text = add_texts(app, "--text,-p", o->texts, "text to classify; repeatable");
  auto* second =
      add_texts(app, "--text-b", o->seconds, "second text of a pair; as often as --text");
  auto* file = app.add_option("--file,-f", o->file,
                              "file with one text a line; - = standard input. Question answering: "
                              "the file is one text");
  second->needs(text);
  text->excludes(file);
  app.add_flag("--pairs", o->pairs, "lines of --file are tab-separated text pairs")->needs(file);
  app.add_option("--max-tokens", o->how.max_tokens, "truncate texts to N tokens")
      ->check(positive());
  group(app, "Task");
  app.add_option("--question", o->question, "question about the text (extractive QA)");
  app.add_flag("--allow-no-answer,--may-lack", o->how.allow_no_answer,
               "question answering with \"no answer\" (SQuAD 2.0)");
  app.add_flag("--multi-label,--several", o->how.multi_label, "multi-label: all classes above 0.5");
  group(app, "Output");
  app.add_option("--top,-k,--top-k", o->top, "number of classes shown, the most likely first")
      ->check(positive());
  app.add_flag("--json", o->json, "results as JSON");
  group(app, "Precision and performance");
  o->products.add(app);
  o->device.add(app);
  add_threads(app, o->threads);
  group(app, "Model");
  add_adapters(app, o->adapters);
  o->loading.add(app);
  examples(app, {"tessera classify run --text 'What a film'",
                 "tessera classify run --file reviews.txt --json",
                 "tessera classify nli --text 'It rains' --text-b 'It is wet' --top 3",
                 "tessera classify qa --question 'Who wrote it?' --file article.txt",
                 "tessera classify all-MiniLM-L6-v2 --adapter run --text 'Well done'"});
  return [o, text, file] {
    if (text->empty() && file->empty())
      fail(ErrorKind::usage, "classify", "nothing to classify; expected --text or --file");
    return classify(*o);
  };
}

}  // namespace tessera::cli
