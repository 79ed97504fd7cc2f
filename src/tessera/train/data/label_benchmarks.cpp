#include "tessera/train/data/label_benchmarks.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <span>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr const char* kGlue = "glue:";

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Without case and signs: "SST-2" is "sst2".
std::string bare(const std::string& name) {
  std::string out = lower(name);
  std::erase_if(out, [](char c) { return c == '-' || c == '_'; });
  return out;
}

std::vector<LabelBenchmark> all_benchmarks() {
  const std::vector<std::string> entails = {"entailment", "not_entailment"},
                                 truth = {"false", "true"};
  std::vector<LabelBenchmark> all = {{.name = "glue:cola",
                                      .metric = "Matthews correlation",
                                      .columns = {"source", "label", "mark", "sentence"},
                                      .text = {"sentence"},
                                      .label = {"label"},
                                      .classes = {"unacceptable", "acceptable"},
                                      .scores = {"matthews"}},
                                     {.name = "glue:sst2",
                                      .metric = "accuracy",
                                      .text = {"sentence"},
                                      .label = {"label"},
                                      .classes = {"negative", "positive"},
                                      .scores = {"accuracy"}},
                                     {.name = "glue:mrpc",
                                      .metric = "accuracy, F1",
                                      .text = {"#1 String", "sentence1"},
                                      .text_b = {"#2 String", "sentence2"},
                                      .label = {"Quality", "label"},
                                      .classes = {"not_equivalent", "equivalent"},
                                      .scores = {"accuracy", "f1"}},
                                     {.name = "glue:qqp",
                                      .metric = "accuracy, F1",
                                      .text = {"question1"},
                                      .text_b = {"question2"},
                                      .label = {"is_duplicate", "label"},
                                      .classes = {"not_duplicate", "duplicate"},
                                      .scores = {"accuracy", "f1"}},
                                     {.name = "glue:stsb",
                                      .metric = "Pearson, Spearman correlation",
                                      .regression = true,
                                      .text = {"sentence1"},
                                      .text_b = {"sentence2"},
                                      .label = {"score", "label"},
                                      .scores = {"pearson", "spearman"}},
                                     {.name = "glue:mnli",
                                      .metric = "accuracy",
                                      .text = {"sentence1", "premise"},
                                      .text_b = {"sentence2", "hypothesis"},
                                      .label = {"gold_label", "label"},
                                      .classes = {"entailment", "neutral", "contradiction"},
                                      .scores = {"accuracy"}},
                                     {.name = "glue:qnli",
                                      .metric = "accuracy",
                                      .text = {"question"},
                                      .text_b = {"sentence"},
                                      .label = {"label"},
                                      .classes = entails,
                                      .scores = {"accuracy"}},
                                     {.name = "glue:rte",
                                      .metric = "accuracy",
                                      .text = {"sentence1"},
                                      .text_b = {"sentence2"},
                                      .label = {"label"},
                                      .classes = entails,
                                      .scores = {"accuracy"}},
                                     {.name = "glue:wnli",
                                      .metric = "accuracy",
                                      .text = {"sentence1"},
                                      .text_b = {"sentence2"},
                                      .label = {"label"},
                                      .classes = {"not_entailment", "entailment"},
                                      .scores = {"accuracy"}},
                                     {.name = "superglue:boolq",
                                      .metric = "accuracy",
                                      .text = {"question"},
                                      .text_b = {"passage"},
                                      .label = {"label", "answer"},
                                      .classes = truth,
                                      .scores = {"accuracy"}},
                                     {.name = "superglue:cb",
                                      .metric = "accuracy, macro F1",
                                      .text = {"premise"},
                                      .text_b = {"hypothesis"},
                                      .label = {"label"},
                                      .classes = {"entailment", "contradiction", "neutral"},
                                      .scores = {"accuracy", "macro_f1"}},
                                     {.name = "superglue:copa",
                                      .metric = "accuracy",
                                      .scores = {"choice_accuracy"},
                                      .layout = RecordLayout::copa},
                                     {.name = "superglue:multirc",
                                      .metric = "F1 of answers, exact match of questions",
                                      .scores = {"f1", "exact_match"},
                                      .layout = RecordLayout::multirc},
                                     {.name = "superglue:record",
                                      .metric = "exact match, F1",
                                      .scores = {"exact_match", "answer_f1"},
                                      .layout = RecordLayout::record},
                                     {.name = "superglue:rte",
                                      .metric = "accuracy",
                                      .text = {"premise"},
                                      .text_b = {"hypothesis"},
                                      .label = {"label"},
                                      .classes = entails,
                                      .scores = {"accuracy"}},
                                     {.name = "superglue:wic",
                                      .metric = "accuracy",
                                      .scores = {"accuracy"},
                                      .layout = RecordLayout::wic},
                                     {.name = "superglue:wsc",
                                      .metric = "accuracy",
                                      .scores = {"accuracy"},
                                      .layout = RecordLayout::wsc},
                                     {.name = "superglue:axb",
                                      .metric = "Matthews correlation",
                                      .text = {"sentence1"},
                                      .text_b = {"sentence2"},
                                      .label = {"label"},
                                      .classes = entails,
                                      .scores = {"matthews"}},
                                     {.name = "superglue:axg",
                                      .metric = "accuracy",
                                      .text = {"premise"},
                                      .text_b = {"hypothesis"},
                                      .label = {"label"},
                                      .classes = entails,
                                      .scores = {"accuracy"}}};
  const LabelData keys;
  std::vector<std::string> digits;
  for (int i = 0; i < 10; ++i) digits.push_back(std::to_string(i));
  for (const char* name :
       {"lra:listops", "lra:text", "lra:image", "lra:pathfinder", "lra:retrieval"}) {
    LabelBenchmark one{.name = name, .metric = "accuracy", .text = {keys.text_key}};
    one.label = {keys.label_key};
    one.classes = digits;
    one.scores = {"accuracy"};
    all.push_back(std::move(one));
  }
  const auto lra = std::span(all).last(5);
  lra[0].format = LabelFormat::listops;
  lra[1].classes = {"negative", "positive"};
  lra[3].classes = {"0", "1"};
  // new_aan_pairs.*.tsv have no line of names
  lra[4].columns = {"label", "id1", "id2", "text1", "text2"};
  lra[4].text = {"text1", keys.text_key};
  lra[4].text_b = {"text2", keys.text_b_key};
  lra[4].classes = {"0.0", "1.0"};
  for (LabelBenchmark& one : all) {
    if (!one.layout) continue;
    one.text = {keys.text_key};
    if (one.layout != RecordLayout::wsc) one.text_b = {keys.text_b_key};
    one.label = {keys.label_key};
    one.classes = truth;
  }
  return all;
}

}  // namespace

const std::vector<LabelBenchmark>& label_benchmarks() {
  static const std::vector<LabelBenchmark> all = all_benchmarks();
  return all;
}

const LabelBenchmark* find_label_benchmark(const std::string& name) {
  const std::string wanted = bare(name);
  for (const LabelBenchmark& one : label_benchmarks())
    if (one.name == wanted || one.name == kGlue + wanted) return &one;
  const std::string suite = wanted.substr(0, wanted.find(':') + 1);
  std::vector<std::string> names;
  for (const LabelBenchmark& one : label_benchmarks())
    if (!suite.empty() && one.name.starts_with(suite)) names.push_back(one.name);
  if (names.empty()) return nullptr;
  fail(ErrorKind::usage, "task", "--task {}; expected one of {}", name, fmt::join(names, ", "));
}

std::vector<std::string> benchmark_classes(const LabelBenchmark& benchmark,
                                           const std::vector<std::string>& head) {
  const std::vector<std::string>& own = benchmark.classes;
  if (head.size() != own.size()) return {};
  bool unnamed = true;
  for (size_t i = 0; i < head.size(); ++i)
    unnamed = unnamed && (head[i] == std::to_string(i) || head[i] == "LABEL_" + std::to_string(i));
  if (unnamed) return own;
  std::vector<std::string> out;
  for (const std::string& name : head)
    for (const std::string& wanted : own)
      if (lower(name) == wanted) out.push_back(wanted);
  return std::set<std::string>(out.begin(), out.end()).size() == own.size()
             ? out
             : std::vector<std::string>();
}

}  // namespace tessera::train
