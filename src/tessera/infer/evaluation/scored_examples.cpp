#include "tessera/infer/evaluation/scored_examples.h"

#include "tessera/base/error.h"
#include "tessera/infer/evaluation/evaluate.h"

namespace tessera::infer {
namespace {

/// The score of a stored result.
Score stored_score(const spec::Json& line) {
  try {
    return {.nats = line.at("nats").get<double>(),
            .hits = line.at("hits").get<int64_t>(),
            .targets = line.at("targets").get<int64_t>()};
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::file, "eval",
         "stored results have other scores than this evaluation; expected another --out");
  }
}

}  // namespace

ExampleScores score_examples(const model::Model& model,
                             int64_t examples,
                             const std::function<TargetedExample(int64_t i)>& make,
                             const ExampleOptions& options) {
  constexpr int64_t kTokensAtOnce = 4096;
  std::vector<Score> scores;
  if (options.results != nullptr) {
    const std::vector<spec::Json>& done = options.results->done();
    for (int64_t i = options.first; i < std::ssize(done) && std::ssize(scores) < examples; ++i)
      scores.push_back(stored_score(done[static_cast<size_t>(i)]));
  }
  int64_t made = std::ssize(scores);
  const NextPass next = [&](std::vector<Engine::Result>& before) {
    for (const Engine::Result& result : before) {
      const Score& score = result.generation.score;
      if (options.results != nullptr)
        options.results->add({{"index", options.first + std::ssize(scores)},
                              {"nats", score.nats},
                              {"hits", score.hits},
                              {"targets", score.targets}});
      scores.push_back(score);
    }
    std::vector<Request> requests;
    for (int64_t tokens = 0; made < examples && (tokens == 0 || tokens < kTokensAtOnce);) {
      TargetedExample example = make(made++);
      tokens += std::ssize(example.ids);
      requests.push_back(
          scoring({.tokens = std::move(example.ids)}, {.ids = std::move(example.targets)}));
    }
    return requests;
  };
  if (made < examples) evaluate(model, next, options.kv, options.cancel);
  Score sum;
  for (const Score& score : scores) sum += score;
  require(sum.targets > 0, "eval", "examples without targets");
  int64_t right = 0;
  for (const Score& score : scores) right += score.hits == score.targets ? 1 : 0;
  ExampleScores out;
  out.examples = examples;
  out.exact_match = proportion(right, examples);
  out.accuracy = bootstrap(examples, options.seed, [&](std::span<const int64_t> chosen) {
    Score of_chosen;
    for (const int64_t i : chosen) of_chosen += scores[static_cast<size_t>(i)];
    return static_cast<double>(of_chosen.hits) / static_cast<double>(of_chosen.targets);
  });
  out.nll = sum.nats / static_cast<double>(sum.targets);
  return out;
}

}  // namespace tessera::infer
