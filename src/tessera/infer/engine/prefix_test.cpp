// Text of models whose prompts are prefixes: their tokens see each other, generated ones the past.
#include <algorithm>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/infer/evaluation/verify.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::prefix_test {
namespace {

using test::expect_error;
using test::TemporaryFolder;
using Ids = std::vector<int64_t>;

std::string layer(const std::string& pattern, const std::string& position = "\"rope\"") {
  return fmt::format(
      R"({{"mixer": {{"type": "attention", "n_heads": 2, "position": {}, "pattern": {}}}}})",
      position, pattern);
}

const std::string kOpen = R"({"type": "prefix"})", kSix = R"({"type": "prefix", "length": 6})";
const std::string kMamba = R"({"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}})";

/// One for every way in which prefixes come together, the last without a state.
const std::vector<std::string>& stacks() {
  static const std::vector<std::string> all = {
      layer(kOpen) + "," + layer(kOpen), layer(kSix) + "," + layer(kSix),
      layer(kOpen) + "," + kMamba + "," + layer(kSix) + "," + layer("\"full\""),
      layer(kOpen, R"({"type": "rope", "scaling": {"type": "dynamic", "factor": 4,
                       "original_length": 12}})")};
  return all;
}

/// Shorter than the fixed prefix, as long, longer; one token alone.
std::vector<Ids> prompts() {
  return {random_tokens(9, 1), random_tokens(4, 2), random_tokens(6, 3), random_tokens(1, 4)};
}

std::vector<Ids> tokens_of(const Generations& generations) {
  std::vector<Ids> rows;
  for (const Generation& row : generations.rows) rows.push_back(row.token_ids);
  return rows;
}

/// By the definition: everything anew for each token, the first `given` of them the prefix.
Tensor logits_of(const model::Model& model, const Ids& ids, size_t given) {
  const at::NoGradGuard no_gradients;
  nn::Batch batch = nn::Batch::of(std::vector<Ids>{ids});
  batch.segments[0].prefix = static_cast<int64_t>(given);
  return model.logits(model.hidden(batch));
}

std::vector<Ids> anew(const model::Model& model, int64_t tokens) {
  std::vector<Ids> out;
  for (const Ids& prompt : prompts()) {
    Ids all = prompt;
    for (int64_t i = 0; i < tokens; ++i)
      all.push_back(logits_of(model, all, prompt.size())[-1].argmax().item<int64_t>());
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end());
  }
  return out;
}

TEST(PrefixText, IsThatOfTheDefinitionHoweverItIsMade) {
  for (const std::string& layers : stacks()) {
    const model::Model model = tiny_model(layers, 7);
    const bool stateful = model.spec().no_state_reason().empty();
    GenerateOptions options;
    options.max_new_tokens = 12;
    const std::vector<Ids> want = anew(model, 12);
    for (const int64_t chunk : {1, 3, 1000}) {
      options.prefill_chunk = chunk;
      EXPECT_EQ(tokens_of(generate(model, nullptr, prompts(), options)), want) << layers << chunk;
      EXPECT_EQ(tokens_of(beam_search(model, nullptr, prompts(), options, {.beams = 1})), want);
    }
    for (size_t r = 0; r < want.size(); ++r)
      EXPECT_EQ(tokens_of(generate(model, nullptr, {prompts()[r]}, options))[0], want[r]);
    if (!stateful) continue;
    options.prefill_chunk = 2;
    options.speculation = {nullptr, 3, 4};
    EXPECT_EQ(tokens_of(generate(model, nullptr, prompts(), options)), want) << layers;
    options.speculation = {&model, 0, 4};
    const Generations guessed = generate(model, nullptr, prompts(), options);
    EXPECT_EQ(tokens_of(guessed), want) << layers;
    EXPECT_EQ(guessed.accepted_tokens, guessed.drafted_tokens);  // the draft reads the same prefix
  }
}

TEST(PrefixText, BeamsDoNotDependOnCalls) {
  const model::Model model = tiny_model(stacks()[2], 7);
  GenerateOptions options;
  options.max_new_tokens = 8;
  const auto want = tokens_of(beam_search(model, nullptr, prompts(), options, {.beams = 3}));
  options.prefill_chunk = 2;
  EXPECT_EQ(tokens_of(beam_search(model, nullptr, prompts(), options, {.beams = 3})), want);
}

TEST(PrefixText, PromptsSeeThemselvesAndNothingElseDoes) {
  const Ids ids = random_tokens(12, 5);
  Ids other = ids;
  other[4] = (other[4] + 1) % 23;
  const auto moved = [&](const std::string& pattern, size_t given) {
    const model::Model model = tiny_model(layer(pattern) + "," + layer(pattern), 7);
    const Tensor difference =
        (logits_of(model, ids, given) - logits_of(model, other, given)).abs().amax(1);
    std::vector<bool> rows;
    for (int64_t i = 0; i < 5; ++i) rows.push_back(difference[i].item<double>() > 0);
    return rows;
  };
  const std::vector<bool> causal = {false, false, false, false, true}, seen(5, true);
  EXPECT_EQ(moved("\"full\"", 5), causal);
  EXPECT_EQ(moved(kOpen, 0), causal);  // nothing is given
  EXPECT_EQ(moved(kOpen, 4), causal);  // the change lies behind the prefix
  EXPECT_EQ(moved(kOpen, 5), seen);
  EXPECT_EQ(moved(kSix, 0), seen);
  EXPECT_EQ(moved(kSix, 4), causal);
  EXPECT_EQ(moved(kSix, 9), seen);
}

TEST(PrefixText, ASessionGoesOnAndAnotherPromptIsRead) {
  for (const size_t stack : {0, 2, 3}) {
    const model::Model model = tiny_model(stacks()[stack], 7);
    GenerateOptions options;
    options.max_new_tokens = 12;
    const std::vector<Ids> want = tokens_of(generate(model, nullptr, prompts(), options));
    Session session;
    options.session = &session;
    options.max_new_tokens = 5;
    std::vector<Ids> got = tokens_of(generate(model, nullptr, prompts(), options));
    const TemporaryFolder folder;
    const std::string print = fingerprint(model, nullptr);
    save_session(folder / "session", session, print);
    session = load_session(folder / "session", model, print);
    options.max_new_tokens = 7;
    const Generations rest = generate(model, nullptr, std::vector<Ids>(4), options);
    for (size_t r = 0; r < 4; ++r)
      got[r].insert(got[r].end(), rest.rows[r].token_ids.begin(), rest.rows[r].token_ids.end());
    EXPECT_EQ(got, want) << stack;
    // what is said later is read in order
    options.max_new_tokens = 1;
    const std::vector<Ids> more(4, Ids{3, 1, 4});
    const Generations next = generate(model, nullptr, more, options);
    for (size_t r = 0; r < 4; ++r) {
      const Ids& row = session.rows[r].tokens;
      const Ids all(row.begin(), row.end() - 1);
      EXPECT_EQ(logits_of(model, all, prompts()[r].size())[-1].argmax().item<int64_t>(), row.back())
          << stack << " " << r;
    }
  }
}

TEST(PrefixText, AnotherPromptsCacheIsRefused) {
  const model::Model model = tiny_model(stacks()[0], 7);
  expect_error(ErrorKind::usage, "lets tokens see later ones",
               [&] { PrefixCache(model, {.budget_bytes = 1 << 20}); });
}

TEST(PrefixText, AnAnswersStartIsItsPrefix) {
  const std::string mixer = R"({"type": "attention", "n_heads": 2, "position": "rope",
                                "pattern": {"type": "prefix", "length": 6}})";
  const model::Model model = tiny_pair(mixer, 7);
  GenerateOptions options;
  options.max_new_tokens = 9;
  const auto want = tokens_of(generate(model, nullptr, prompts(), options));
  options.prefill_chunk = 1;
  EXPECT_EQ(tokens_of(generate(model, nullptr, prompts(), options)), want);
}

TEST(PrefixText, FormsAgree) {
  for (const std::string& layers : {stacks()[0], stacks()[1], stacks()[2]}) {
    const Verification found =
        verify(tiny_model(layers, 7), random_tokens(40, 1), {.longest_chunk = 5});
    EXPECT_LT(Verification::worst(found.branches)->error, 1e-5) << layers;
    EXPECT_LT(Verification::worst(found.logits)->error, 1e-5) << layers;
  }
}

TEST(PrefixText, LikelihoodLeavesOutWhatIsSeen) {
  const model::Model model = tiny_model(stacks()[1], 7), open = tiny_model(stacks()[0], 7),
                     full = tiny_model(layer("\"full\"") + "," + layer("\"full\""), 7);
  const Ids ids = random_tokens(41, 6);
  // nothing is given of a text: plainly causal
  EXPECT_EQ(evaluate(open, ids, {.window = 12}).nll, evaluate(full, ids, {.window = 12}).nll);
  const EvalResult once = evaluate(model, ids, {.window = 41});
  EXPECT_EQ(once.target_ids, Ids(ids.begin() + 6, ids.end()));
  const Tensor logits = logits_of(model, ids, 0);
  EXPECT_NEAR(
      once.nll,
      nll_sum(logits.narrow(0, 5, 35), at::tensor(Ids(ids.begin() + 6, ids.end()), at::kLong)) / 35,
      1e-6);
  // 6 of 12 in three windows of 11 more each, and the last one's 8
  EXPECT_EQ(evaluate(model, ids, {.window = 12}).targets, 6 + 6 + 6 + 2);
  const EvalResult carried = evaluate(model, ids, {.window = 7, .carry = true});
  EXPECT_NEAR(carried.nll, once.nll, 1e-5);
  EXPECT_EQ(carried.targets, 35);
  expect_error(ErrorKind::usage, "expected a longer window",
               [&] { evaluate(model, ids, {.window = 5, .carry = true}); });
  expect_error(ErrorKind::input, "nothing to predict",
               [&] { evaluate(model, Ids(ids.begin(), ids.begin() + 6), {.window = 12}); });
}

}  // namespace
}  // namespace tessera::infer::prefix_test
