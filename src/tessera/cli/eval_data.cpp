#include "tessera/base/temporary_folder.h"
#include "tessera/cli/eval_data.h"

#include <cmath>

namespace tessera::cli {

void EvalData::add(CLI::App& app) {
  group(app, "Labelled data");
  train::FinetuneOptions& data = how.data;
  auto* files =
      app.add_option("--data", data.data,
                     "files of examples to score: labelled texts, words or questions, images or "
                     "sounds, "
                     "conversations, preferences, pairs; what `tessera finetune` reads; with an "
                     "embedding model pairs and their similarity (STS)");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->needs(files);
  };
  add("--labels", data.labels, "label files for .txt data");
  add("--format", data.format, "format of --data; default: by file extension")
      ->check(CLI::IsMember({"tsv", "csv", "jsonl", "lines", "conll", "squad", "listops", "cifar",
                             "cifar100", "idx", "folder"}));
  add("--columns", data.columns, "column names, where the first line has none")->delimiter(',');
  add("--separator", data.separator, "column separator; default: tab, comma");
  add("--text-key", data.text, "column or key of the text, or of the file of an image");
  add("--text-b-key,--text-b", data.text_b, "column or key of the second text of a pair");
  add("--label-key,--label", data.label, "column or key of the label or number");
  add("--length", data.length, "maximum tokens per example; default: the longest")
      ->check(positive());
  add("--batch", data.batch, "examples per forward pass")->check(positive());
  add("--reference", how.reference,
      "preferences: reference model of the rewards; default: what the run started from");
}

int evaluate_data(EvalData& o, bool json) {
  const TemporaryFolder cache;
  o.how.cache = cache.path();
  o.how.data.cancel = &cancel_token();
  const train::DataEvaluation got = train::evaluate_data(o.how);
  for (const std::string& line : got.said) fmt::print(stderr, "tessera: {}\n", line);
  std::map<std::string, double> scores = got.result.scores;
  const bool tokens = scores.empty();
  if (tokens) scores = {{"accuracy", got.result.accuracy}};
  if (tokens) scores["perplexity"] = std::exp(got.result.loss);
  if (got.result.bits_per_byte > 0) scores["bits_per_byte"] = got.result.bits_per_byte;
  const bool has_loss = got.task != "similarity";
  if (json) {
    Json report = {{"task", got.task},
                   {"examples", got.examples},
                   {"predicted", got.result.tokens},
                   {"scores", scores}};
    if (!got.benchmark.empty()) report["benchmark"] = got.benchmark;
    for (const auto& [name, interval] : got.result.intervals)
      report["intervals"][name] = interval.to_json();
    for (const auto& [name, accuracy] : got.baselines) report["baselines"][name] = accuracy;
    if (has_loss) report["loss"] = got.result.loss;
    print_json(report);
    return kExitOk;
  }
  fmt::print("{:<18}{}\n{:<18}{}\n", "task",
             got.benchmark.empty() ? got.task : got.benchmark + ", " + got.task, "examples",
             got.examples);
  if (has_loss) fmt::print("{:<18}{:.4f}\n", "loss", got.result.loss);
  for (const auto& [name, score] : scores) {
    const auto found = got.result.intervals.find(name);
    if (found == got.result.intervals.end())
      fmt::print("{:<18}{:.4f}\n", name, score);
    else
      fmt::print("{:<18}{:.4f} [{:.4f}, {:.4f}] ({})\n", name, score, found->second.low,
                 found->second.high, found->second.interval);
  }
  return kExitOk;
}

}  // namespace tessera::cli
