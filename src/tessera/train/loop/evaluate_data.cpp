#include "tessera/train/loop/evaluate_data.h"

#include <algorithm>
#include <map>
#include <span>

#include "tessera/infer/encoders/embed.h"
#include "tessera/infer/evaluation/estimate.h"
#include "tessera/infer/evaluation/result_lines.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/placement.h"
#include "tessera/train/data/label_examples.h"
#include "tessera/train/data/listops.h"
#include "tessera/train/objective/metrics.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/recipe/finetune_planner.h"
#include "tessera/train/recipe/start.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using spec::Json;

/// Rewards relative to a reference model, otherwise mean log-probabilities of answers.
void take_reference(const DataEvaluationOptions& options, FinetunePlan& plan) {
  std::string reference = options.reference;
  if (reference.empty())
    reference = options.adapters.empty() ? start_of_run(options.data.model) : options.data.model;
  if (!reference.empty()) {
    plan.recipe["init"] = {{"from", fs::absolute(reference).lexically_normal().string()},
                           {"ignore_keys", options.loading.keys.ignore}};
    plan.choices.push_back("reference: " + reference + " (--reference)");
    return;
  }
  plan.recipe["objective"]["loss"] = "simpo";
  plan.choices.push_back(
      "no reference model: accuracy compares mean log-probabilities of tokens (--reference MODEL)");
}

/// Pearson's and Spearman's correlation of the cosine of two vectors with the similarity of the
/// example, as in sentence-transformers' EmbeddingSimilarityEvaluator.
Evaluation evaluate_similarity(const infer::LoadedModel& loaded,
                               const std::vector<std::string>& adapters,
                               const FinetuneOptions& how,
                               const Json& recipe,
                               uint64_t seed) {
  const auto data = spec::read_struct<LabelData>(recipe["data"], spec::Scope().at("data"));
  const int64_t length = recipe["train"]["length"], batch = recipe["train"]["batch"];
  infer::EmbedOptions options = infer::embed_options_of(how.model, adapters);
  if (length > 0) options.max_tokens = length;
  options.cancel = how.cancel;
  const std::vector<LabelledText> pairs =
      read_texts(data, LabelSplit::train, LabelOf::score, how.cancel);
  std::vector<double> truth, said;
  for (size_t begin = 0; begin < pairs.size(); begin += static_cast<size_t>(batch)) {
    std::vector<std::string> texts;
    const size_t end = std::min(pairs.size(), begin + static_cast<size_t>(batch));
    for (size_t i = begin; i < end; ++i)
      texts.insert(texts.end(), {pairs[i].text, pairs[i].text_b});
    const Tensor vectors_RD =
        infer::embed(loaded, texts, options).vectors_RD.to(at::kCPU, at::kDouble);
    for (size_t i = begin; i < end; ++i) {
      const auto row = static_cast<int64_t>(2 * (i - begin));
      const Tensor a_D = vectors_RD[row], b_D = vectors_RD[row + 1];
      const double lengths = (a_D.norm() * b_D.norm()).item<double>();
      truth.push_back(pairs[i].score);
      said.push_back(lengths > 0 ? a_D.dot(b_D).item<double>() / lengths : 0);
    }
  }
  Evaluation out;
  out.tokens = std::ssize(pairs);
  const auto add = [&](const char* name,
                       double (*score)(std::span<const double>, std::span<const double>)) {
    std::vector<double> some_truth, some_said;
    const infer::Estimate estimate =
        infer::bootstrap(std::ssize(truth), seed, [&](std::span<const int64_t> chosen) {
          some_truth.clear();
          some_said.clear();
          for (const int64_t i : chosen) {
            some_truth.push_back(truth[static_cast<size_t>(i)]);
            some_said.push_back(said[static_cast<size_t>(i)]);
          }
          return score(some_truth, some_said);
        });
    out.scores[name] = estimate.value;
    out.intervals[name] = estimate;
  };
  add("pearson_cosine", pearson);
  add("spearman_cosine", spearman);
  return out;
}

[[noreturn]] void refuse_out(const std::string& task) {
  fail(ErrorKind::usage, "eval", "--out with task {}; expected it with labels", task);
}

/// The scores that a benchmark reports, and their mean.
void keep_scores(const std::vector<std::string>& names, Evaluation& result) {
  if (names.empty()) return;
  std::map<std::string, double> kept;
  double sum = 0;
  for (const std::string& name : names) sum += kept[name] = result.scores.at(name);
  if (names.size() > 1) kept["mean"] = sum / static_cast<double>(names.size());
  result.scores = std::move(kept);
  std::erase_if(result.intervals,
                [&](const auto& one) { return !result.scores.contains(one.first); });
}

/// Of files of ListOps.
std::map<std::string, double> baselines_of(const LabelData& data, const CancelToken* cancel) {
  std::vector<std::string> symbols;
  std::vector<int64_t> values;
  for (LabelledText& one : read_texts(data, LabelSplit::train, LabelOf::one_class, cancel)) {
    symbols.push_back(std::move(one.text));
    values.push_back(listops_value(symbols.back(), one.where));
  }
  const ListOpsBaselines found = listops_baselines(symbols, values);
  return {{"majority", found.majority}, {"root_operator", found.root_operator}};
}

/// The examples are both splits of the recipe: each remark about them once, without a split.
void say_of_evaluation(std::string line, std::vector<std::string>& said) {
  for (const std::string_view split : {"train: ", "valid: "})
    if (line.starts_with(split)) line.erase(0, split.size());
  if (std::find(said.begin(), said.end(), line) == said.end()) said.push_back(std::move(line));
}

}  // namespace

DataEvaluation evaluate_data(const DataEvaluationOptions& options) {
  infer::LoadedModel loaded =
      infer::load_model(options.data.model, options.loading, options.adapters);
  if (!options.device.is_cpu()) loaded.model = model::to_device(loaded.model, options.device);
  FinetuneOptions how = options.data;
  how.measured = &loaded.model.spec();
  how.ignore_keys = options.loading.keys.ignore;
  FinetunePlan plan = plan_finetune(how);
  plan.choices.insert(plan.choices.begin(), loaded.source.remarks.begin(),
                      loaded.source.remarks.end());
  if (plan.task == kSimilarity) {
    if (!options.out.empty()) refuse_out(plan.task);
    DataEvaluation out{plan.task, plan.benchmark, std::move(plan.choices)};
    out.result = evaluate_similarity(loaded, options.adapters, how, plan.recipe, options.seed);
    out.examples = out.result.tokens;
    return out;
  }
  if (plan.task == kPreference) take_reference(options, plan);
  const Recipe recipe = read_recipe(plan.recipe, "");
  DataEvaluation out{plan.task, plan.benchmark, std::move(plan.choices)};
  const auto objective = open_objective(
      recipe, {.cache = options.cache,
               .cancel = how.cancel,
               .say = [&](const std::string& line) { say_of_evaluation(line, out.said); },
               .device = options.device});
  out.examples = objective->source().valid_samples();
  if (!options.out.empty() && recipe.data.labels() == nullptr) refuse_out(plan.task);
  infer::ResultLines results;
  if (!options.out.empty())
    results = infer::ResultLines(options.out, {{"evaluation", "tessera eval --data"},
                                               {"model", how.model},
                                               {"adapters", options.adapters},
                                               {"task", plan.task},
                                               {"batch", recipe.train.batch},
                                               {"data_sha256", objective->source().key()}});
  if (!results.done().empty())
    out.said.push_back(fmt::format("{} of {} model calls from {}", results.done().size(),
                                   (out.examples + recipe.train.batch - 1) / recipe.train.batch,
                                   options.out.string()));
  out.result =
      objective->evaluate(loaded.model, {.batch = recipe.train.batch,
                                         .cancel = how.cancel,
                                         .interval_seed = options.seed,
                                         .results = options.out.empty() ? nullptr : &results});
  keep_scores(plan.scores, out.result);
  const LabelData* data = recipe.data.labels();
  if (data != nullptr && data->format == LabelFormat::listops)
    out.baselines = baselines_of(*data, how.cancel);
  return out;
}

}  // namespace tessera::train
