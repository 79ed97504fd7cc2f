// Texts longer than their context: what goes on is the text of what is left, however it is made.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/infer/generate.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::context_shift_test {
namespace {

using Ids = std::vector<int64_t>;

TEST(ContextShift, KeepsTheFirstAndTheLaterHalfOfTheOthers) {
  EXPECT_EQ(shifted({0, 1, 2, 3, 4, 5, 6, 7, 8}, 2), (Ids{0, 1, 6, 7, 8}));
  EXPECT_EQ(shifted({0, 1, 2, 3, 4, 5, 6, 7}, 0), (Ids{4, 5, 6, 7}));
  // more first tokens than half of the text would leave no room
  EXPECT_EQ(shifted({0, 1, 2, 3, 4}, 100), (Ids{0, 1, 4}));
}

/// The greedy text by hand: token by token, each by a request of its own.
Ids by_hand(const model::Model& model, Ids tokens, int64_t context, int64_t keep, int64_t count) {
  GenerateOptions one;
  one.max_new_tokens = 1;
  Ids made;
  for (int64_t i = 0; i < count; ++i) {
    if (std::ssize(tokens) > context) tokens = shifted(tokens, keep);
    made.push_back(generate(model, nullptr, {tokens}, one).rows[0].token_ids.at(0));
    tokens.push_back(made.back());
  }
  return made;
}

TEST(ContextShift, TextIsThatOfWhatIsLeft) {
  constexpr int64_t kContext = 13, kNew = 40;
  for (const auto& [name, text] : tiny_layers()) {
    SCOPED_TRACE(name);
    const model::Model model = tiny_model(text, 3);
    const std::vector<Ids> prompts{random_tokens(9, 1), random_tokens(3, 2), random_tokens(13, 4)};
    for (const int64_t keep : {0, 3}) {
      GenerateOptions options;
      options.max_new_tokens = kNew;
      options.context = kContext;
      options.shift = true;
      options.keep_first = keep;
      for (const int64_t lookup : {0, 3}) {
        options.speculation.lookup = lookup;
        options.prefill_chunk = lookup == 0 ? 4 : 1000;
        const Generations got = generate(model, nullptr, prompts, options);
        for (size_t r = 0; r < prompts.size(); ++r) {
          EXPECT_EQ(got.rows[r].token_ids, by_hand(model, prompts[r], kContext, keep, kNew)) << r;
          EXPECT_EQ(got.rows[r].finish_reason, "length");
          EXPECT_GE(got.rows[r].shifts, 4);
        }
      }
    }
  }
}

TEST(ContextShift, ChoicesByChanceDoNotRepeat) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  GenerateOptions options;
  options.max_new_tokens = 120;
  options.context = 12;
  options.shift = true;
  options.sampling = {.temperature = 1.5, .seed = 5};
  const std::vector<Ids> prompts{random_tokens(5, 1), random_tokens(8, 2)};
  const Generations both = generate(model, nullptr, prompts, options);
  for (size_t r = 0; r < prompts.size(); ++r)
    EXPECT_EQ(generate(model, nullptr, {prompts[r]}, options).rows[0].token_ids,
              both.rows[r].token_ids);
  // the same numbers at the same places would bring a text back to itself soon
  const Ids& ids = both.rows[0].token_ids;
  for (size_t period = 1; period < 20; ++period)
    EXPECT_FALSE(std::equal(ids.begin() + 60, ids.end() - static_cast<std::ptrdiff_t>(period),
                            ids.begin() + 60 + static_cast<std::ptrdiff_t>(period)))
        << period;
}

TEST(ContextShift, IsRefusedWhereThereIsNoContextOrMoreThanOneText) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  const std::vector<Ids> prompts{random_tokens(5, 1)};
  GenerateOptions options;
  options.shift = true;
  test::expect_error(ErrorKind::usage, "expected --context as well",
                     [&] { generate(model, nullptr, prompts, options); });
  options.context = 3;
  test::expect_error(ErrorKind::usage, "a context of 3 tokens",
                     [&] { generate(model, nullptr, prompts, options); });
  options.context = 12;
  test::expect_error(ErrorKind::usage, "a search keeps many texts", [&] {
    run_requests(model, nullptr, prompts, options, BeamOptions{.beams = 2});
  });
  Session session;
  options.session = &session;
  test::expect_error(ErrorKind::usage, "a session keeps all of its text",
                     [&] { generate(model, nullptr, prompts, options); });
  const model::Model pair = tiny_pair(R"({"type": "attention", "n_heads": 2})", 3);
  options.session = nullptr;
  test::expect_error(ErrorKind::usage, "an answer to a source has one context",
                     [&] { generate(pair, nullptr, prompts, options); });
}

}  // namespace
}  // namespace tessera::infer::context_shift_test
