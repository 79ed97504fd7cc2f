#include "tessera/train/loop/evaluate_data.h"

#include "tessera/infer/encoders/embed.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/train/data/label_examples.h"
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
    plan.said.push_back("reference: " + reference + " (--reference)");
    return;
  }
  plan.recipe["objective"]["loss"] = "simpo";
  plan.said.push_back(
      "no reference model: accuracy compares mean log-probabilities of tokens (--reference MODEL)");
}

/// Pearson's and Spearman's correlation of the cosine of two vectors with the similarity of the
/// example, as in sentence-transformers' EmbeddingSimilarityEvaluator.
Evaluation evaluate_similarity(const infer::LoadedModel& loaded,
                               const std::vector<std::string>& adapters,
                               const FinetuneOptions& how,
                               const Json& recipe) {
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
    const Tensor vectors_RD = infer::embed(loaded, texts, options).vectors_RD.to(at::kDouble);
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
  out.scores = {{"pearson_cosine", pearson(truth, said)},
                {"spearman_cosine", spearman(truth, said)}};
  return out;
}

}  // namespace

DataEvaluation evaluate_data(const DataEvaluationOptions& options) {
  const infer::LoadedModel loaded =
      infer::load_model(options.data.model, options.loading, options.adapters);
  FinetuneOptions how = options.data;
  how.measured = &loaded.model.spec();
  how.ignore_keys = options.loading.keys.ignore;
  FinetunePlan plan = plan_finetune(how);
  plan.said.insert(plan.said.begin(), loaded.source.remarks.begin(), loaded.source.remarks.end());
  if (plan.task == kSimilarity) {
    DataEvaluation out{plan.task, std::move(plan.said)};
    out.result = evaluate_similarity(loaded, options.adapters, how, plan.recipe);
    out.examples = out.result.tokens;
    return out;
  }
  if (plan.task == kPreference) take_reference(options, plan);
  const Recipe recipe = read_recipe(plan.recipe, "");
  DataEvaluation out{plan.task, std::move(plan.said)};
  const auto objective = open_objective(
      recipe, {.cache = options.cache, .cancel = how.cancel, .say = [&](const std::string& line) {
                 out.said.push_back(line);
               }});
  out.examples = objective->source().valid_samples();
  out.result =
      objective->evaluate(loaded.model, {.batch = recipe.train.batch, .cancel = how.cancel});
  return out;
}

}  // namespace tessera::train
