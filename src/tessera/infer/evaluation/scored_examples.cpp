#include "tessera/infer/evaluation/scored_examples.h"

#include "tessera/infer/evaluation/evaluate.h"

namespace tessera::infer {

ExampleScores score_examples(const model::Model& model,
                             int64_t examples,
                             const std::function<TargetedExample(int64_t i)>& make,
                             uint64_t seed,
                             const spec::KvOptions& kv,
                             const CancelToken* cancel) {
  constexpr int64_t kTokensAtOnce = 4096;
  std::vector<Score> scores;
  int64_t made = 0;
  const NextPass next = [&](std::vector<Engine::Result>& before) {
    for (const Engine::Result& result : before) scores.push_back(result.generation.score);
    std::vector<Request> requests;
    for (int64_t tokens = 0; made < examples && (tokens == 0 || tokens < kTokensAtOnce);) {
      TargetedExample example = make(made++);
      tokens += std::ssize(example.ids);
      requests.push_back(
          scoring({.tokens = std::move(example.ids)}, {.ids = std::move(example.targets)}));
    }
    return requests;
  };
  const Score sum = evaluate(model, next, kv, cancel);
  require(sum.targets > 0, "eval", "examples without targets");
  int64_t right = 0;
  for (const Score& score : scores) right += score.hits == score.targets ? 1 : 0;
  ExampleScores out;
  out.examples = examples;
  out.exact_match = proportion(right, examples);
  out.accuracy = bootstrap(examples, seed, [&](std::span<const int64_t> chosen) {
    Score of_chosen;
    for (const int64_t i : chosen) of_chosen += scores[static_cast<size_t>(i)];
    return static_cast<double>(of_chosen.hits) / static_cast<double>(of_chosen.targets);
  });
  out.nll = sum.nats / static_cast<double>(sum.targets);
  return out;
}

}  // namespace tessera::infer
