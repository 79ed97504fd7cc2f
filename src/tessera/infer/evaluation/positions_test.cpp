#include "tessera/infer/evaluation/positions.h"

#include <cmath>

#include "tessera/base/testing.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/infer/evaluation/passkey.h"
#include "tessera/infer/evaluation/scored_examples.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::infer::positions_test {
namespace {

// 1 + sin(0.7 n + 0.1) / 2, n in row-major order; means by numpy
TEST(Positions, BucketsDoubleTheirLength) {
  std::vector<std::vector<double>> nll(2);
  for (int n = 0; n < 16; ++n)
    nll[static_cast<size_t>(n / 8)].push_back(1 + 0.5 * std::sin(0.7 * n + 0.1));
  const auto buckets = by_position(nll);
  ASSERT_EQ(buckets.size(), 4u);
  const double want[] = {0.88728697, 1.20847632, 1.44168797, 0.84766902};
  const int64_t begins[] = {0, 1, 2, 4};
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_NEAR(buckets[b].nll.value, want[b], 1e-8);
    EXPECT_EQ(buckets[b].begin, begins[b]);
  }
  EXPECT_EQ(buckets.back().end, 8);
}

const char* const kLayers =
    R"({"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}})";

TEST(Positions, LengthsAndContextsAreThoseOfWindows) {
  const model::Model model = tiny_model(kLayers, 3);
  const std::vector<int64_t> ids = random_tokens(70, 5);
  const PositionReport report =
      evaluate_positions(model, ids, {.length = 8, .windows = 3, .block = 4});
  ASSERT_EQ(report.lengths.size(), 4u);  // 8, 16, 32, 64
  EXPECT_EQ(report.lengths[0].windows, 3);
  EXPECT_EQ(report.lengths[3].windows, 1);
  EXPECT_NEAR(report.lengths[3].nll.value,
              evaluate(model, {ids.begin(), ids.begin() + 64}, {.window = 64}).nll, 1e-12);
  const double mean =
      evaluate(model, {ids.begin(), ids.begin() + 24}, {.window = 8, .stride = 8}).nll;
  EXPECT_GT(mean, 0);
  double sum = 0;
  for (int64_t at = 0; at < 24; at += 8)
    sum += evaluate(model, {ids.begin() + at, ids.begin() + at + 8}, {.window = 8}).nll / 3;
  EXPECT_NEAR(report.lengths[0].nll.value, sum, 1e-12);
  EXPECT_EQ(report.lengths[0].last_nll.value, report.lengths[0].nll.value);
  EXPECT_EQ(report.positions.back().end, 63);
  // contexts 1, 2, ..., 32 before the last four targets
  ASSERT_EQ(report.contexts.size(), 6u);
  const Request request = scoring({.tokens = {ids.begin() + 58, ids.begin() + 63}},
                                  {.begin = 1, .ids = {ids.begin() + 60, ids.begin() + 64}});
  bool fed = false;
  const Score want = evaluate(model, [&](auto&) {
    return std::exchange(fed, true) ? std::vector<Request>{} : std::vector<Request>{request};
  });
  EXPECT_EQ(report.contexts[1].context, 2);
  EXPECT_NEAR(report.contexts[1].nll.value, want.nats / 4, 1e-12);
}

TEST(Positions, WindowsThatDoNotFitAreLeftOut) {
  const std::vector<int64_t> ids = random_tokens(70, 5);
  const model::Model limited =
      tiny_model(R"({"mixer": {"type": "gmlp", "d_hidden": 12, "max_length": 16}})", 3);
  EXPECT_EQ(evaluate_positions(limited, ids, {.length = 8}).lengths.size(), 2u);
  test::expect_error(ErrorKind::input, "70 tokens, the model any number of positions",
                     [&] { evaluate_positions(tiny_model(kLayers, 3), ids, {.length = 80}); });
  test::expect_error(ErrorKind::usage, "no trained length",
                     [&] { evaluate_positions(tiny_model(kLayers, 3), ids, {}); });
}

TEST(ScoredExamples, CountTargetsAndWholeExamples) {
  const model::Model model = tiny_model(kLayers, 3);
  const auto make = [&](int64_t i) {
    TargetedExample example{random_tokens(9, static_cast<uint64_t>(i)),
                            std::vector<int64_t>(9, -1)};
    // what the model itself says after the last two tokens
    const at::NoGradGuard no_gradients;
    const Tensor logits = model.logits(model.hidden(nn::Batch::of({example.ids})));
    for (const int64_t at : {7, 8})
      example.targets[static_cast<size_t>(at)] = logits[at].argmax().item<int64_t>();
    if (i % 4 == 0) example.targets[8] = (example.targets[8] + 1) % 23;
    return example;
  };
  const ExampleScores scores = score_examples(model, 20, make, {.seed = 1});
  EXPECT_EQ(scores.examples, 20);
  EXPECT_DOUBLE_EQ(scores.exact_match.value, 0.75);
  EXPECT_DOUBLE_EQ(scores.accuracy.value, 35 / 40.0);
  EXPECT_LT(scores.accuracy.low, scores.accuracy.value);
  EXPECT_GT(scores.nll, 0);

  // stored results are not computed again; three of another cell come first
  const test::TemporaryFolder folder;
  int64_t made = 0;
  const auto counted = [&](int64_t i) {
    ++made;
    return make(i);
  };
  const auto stored = [&](int64_t examples) {
    ResultLines results(folder / "results.jsonl", {{"evaluation", "test"}});
    const ExampleOptions options{.seed = 1, .results = &results, .first = 3};
    if (results.done().empty()) score_examples(model, 3, make, {.results = &results});
    return score_examples(model, examples, counted, options);
  };
  EXPECT_EQ(stored(12).examples, 12);
  EXPECT_EQ(made, 12);
  const ExampleScores rest = stored(20), again = stored(20);
  EXPECT_EQ(made, 20);
  for (const ExampleScores* one : {&rest, &again}) {
    EXPECT_EQ(one->accuracy.to_json(), scores.accuracy.to_json());
    EXPECT_EQ(one->exact_match.value, scores.exact_match.value);
    EXPECT_DOUBLE_EQ(one->nll, scores.nll);
  }
}

TEST(Passkey, FillsTheLengthAroundTheNumber) {
  const Passkey plain = make_passkey(1, 0, RandomKey(3));
  const std::string number = plain.answer.substr(1);
  EXPECT_EQ(number.size(), 5u);
  EXPECT_EQ(plain.prompt,
            "There is an important info hidden inside a lot of irrelevant text. Find it and "
            "memorize them. I will quiz you about the important information there.\nThe grass is "
            "green. The sky is blue. The sun is yellow. Here we go. There and back again.\nThe "
            "pass key is " +
                number + ". Remember it. " + number +
                " is the pass key.\n\nWhat is the pass key? The pass key is");
  const text::Tokenizer bytes = text::byte_tokenizer();
  for (const double depth : {0.0, 0.5, 1.0}) {
    const Passkey made = make_passkey(bytes, 2000, depth, RandomKey(4));
    const auto size = std::ssize(made.prompt + made.answer);
    EXPECT_LE(size, 2000);
    EXPECT_GT(size, 2000 - 90);
    const double place = static_cast<double>(made.prompt.find("The pass key is")) / 2000;
    EXPECT_NEAR(place, 0.08 + depth * 0.84, 0.06) << depth;
  }
  test::expect_error(ErrorKind::usage, "passkey prompts of 100 tokens; expected at least",
                     [&] { make_passkey(bytes, 100, 0, RandomKey(4)); });
}

}  // namespace
}  // namespace tessera::infer::positions_test
