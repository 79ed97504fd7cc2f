// Texts longer than their context: what goes on is the text of what is left, however it is made.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

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

/// The text by hand of what is sampled from a prompt and all that was said, shifts or not.
Ids sampled_by_hand(const model::Model& model, const Ids& prompt, const GenerateOptions& options) {
  const at::NoGradGuard no_gradients;
  const RandomKey key = RandomKey(options.sampling.seed).fold("sampling");
  Ids read = prompt, all = prompt;
  SamplerMemory memory;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (std::ssize(read) > options.context) read = shifted(read, options.keep_first);
    const Tensor last =
        model.logits(model.hidden(nn::Batch::of(std::vector<Ids>{read})))[-1].contiguous();
    std::vector<float> logits(last.const_data_ptr<float>(),
                              last.const_data_ptr<float>() + last.numel());
    for (const int64_t id : options.stop_ids)
      if (i < options.min_new_tokens) logits[static_cast<size_t>(id)] = -INFINITY;
    const int64_t id = sample(logits, all, options.sampling, key, prompt.size(), &memory);
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end())
      break;
    read.push_back(id);
    all.push_back(id);
  }
  return {all.begin() + std::ssize(prompt), all.end()};
}

// a shift changes what the model reads, not what was said
TEST(ContextShift, SamplersAndLimitsCountAllThatWasSaid) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  const std::vector<std::pair<std::string, SamplingOptions>> cases = {
      {"repetition", {.repetition_penalty = 1.5}},
      {"presence", {.presence_penalty = 4}},
      {"frequency", {.frequency_penalty = 1}},
      {"last n", {.presence_penalty = 3, .repeat_last_n = 20}},
      {"n-grams", {.no_repeat_ngram_size = 2}},
      {"dry", {.dry_multiplier = 2, .dry_allowed_length = 1}},
      {"words", {.sequence_bias = {{{3, 4}, -INFINITY}, {{7}, -INFINITY}, {{1, 2}, -INFINITY}}}},
      {"sampled", {.temperature = 1.2, .presence_penalty = 1, .seed = 9}},
      {"mirostat", {.temperature = 1, .mirostat = 2, .mirostat_tau = 3, .seed = 4}}};
  for (const auto& [name, sampling] : cases)
    for (const int64_t length : {3, 12}) {
      SCOPED_TRACE(fmt::format("{} after {} tokens", name, length));
      GenerateOptions options;
      options.max_new_tokens = 45;
      options.min_new_tokens = 40;
      options.stop_ids = {5, 6, 7, 8};
      options.context = 13;
      options.shift = true;
      options.keep_first = 2;
      options.sampling = sampling;
      const Ids prompt = random_tokens(length, 4), want = sampled_by_hand(model, prompt, options);
      EXPECT_GE(std::ssize(want), 40);
      for (const int64_t lookup : {0, 3}) {
        options.speculation.lookup = lookup;
        const Generation got = generate(model, nullptr, {prompt}, options).rows[0];
        EXPECT_EQ(got.token_ids, want) << "lookup " << lookup;
        EXPECT_GE(got.shifts, 4);
      }
    }
}

TEST(ContextShift, ThoughtsEndWhereTheirBudgetDoes) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  GenerateOptions options;
  options.max_new_tokens = 60;
  options.context = 13;
  options.shift = true;
  // neither tag comes by itself
  options.sampling.logit_bias = {{20, -INFINITY}, {21, -INFINITY}, {22, -INFINITY}};
  for (const bool opened : {true, false}) {
    options.reasoning = ReasoningBudget{30, opened, {20}, {21, 22}};
    options.forced_begin = opened ? Ids{} : Ids{20};
    const Ids got = generate(model, nullptr, {random_tokens(6, 4)}, options).rows[0].token_ids;
    const auto close = std::ssize(options.forced_begin) + 30;
    ASSERT_EQ(std::ssize(got), 60);
    for (int64_t i = std::ssize(options.forced_begin); i < 60; ++i) {
      const int64_t id = got[static_cast<size_t>(i)];
      EXPECT_EQ(id == 21, i == close) << i;
      EXPECT_EQ(id == 22, i == close + 1) << i;
    }
  }
}

/// Token after token in turn: 0, 1, ... 6, 0, ...; nothing ends before `most` of them.
class Counting final : public text::Constraint {
 public:
  static constexpr int64_t kMost = 50;
  class State final : public text::ConstraintState {
   public:
    std::unique_ptr<text::ConstraintState> clone() const override {
      return std::make_unique<State>(*this);
    }
    void allow(std::span<uint64_t> bits) const override {
      std::fill(bits.begin(), bits.end(), 0);
      // either of two, so that guesses can be wrong
      if (n_ < kMost) text::set_bit(bits, n_ % 7), text::set_bit(bits, 7 + n_ % 7);
    }
    bool accept(int64_t id) override {
      if (n_ >= kMost || (id != n_ % 7 && id != 7 + n_ % 7)) return false;
      ++n_;
      return true;
    }
    bool may_end() const override { return n_ >= kMost; }
    bool must_end() const override { return may_end(); }
    std::string expected() const override { return "the next number"; }

   private:
    int64_t n_ = 0;
  };
  std::unique_ptr<text::ConstraintState> start() const override {
    return std::make_unique<State>();
  }
};

TEST(ContextShift, AConstraintHoldsAcrossIt) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3);
  GenerateOptions options;
  options.max_new_tokens = 100;
  options.context = 13;
  options.shift = true;
  options.logprobs = 1;
  options.constraint = std::make_shared<Counting>();
  options.sampling = {.temperature = 1.5, .seed = 2};
  std::vector<Ids> texts;
  for (const int64_t lookup : {0, 2, 6}) {
    options.speculation.lookup = lookup;
    const Generation got = generate(model, nullptr, {random_tokens(6, 4)}, options).rows[0];
    ASSERT_EQ(std::ssize(got.token_ids), Counting::kMost);
    for (size_t i = 0; i < got.token_ids.size(); ++i) {
      EXPECT_EQ(got.token_ids[i] % 7, i % 7);
      EXPECT_EQ(got.logprobs.at(i).chosen.id, got.token_ids[i]);
    }
    EXPECT_EQ(got.finish_reason, "stop");
    EXPECT_EQ(got.logprobs.size(), got.token_ids.size());
    EXPECT_GE(got.shifts, 5);
    texts.push_back(got.token_ids);
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

TEST(ContextShift, StopStringsAndTextsGoAcrossIt) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 3, 260);
  const text::Tokenizer tokenizer = text::byte_tokenizer();
  GenerateOptions options;
  options.max_new_tokens = 60;
  options.context = 13;
  options.shift = true;
  Ids letters;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (const auto bytes = tokenizer.bytes_of(id);
        bytes && bytes->size() == 1 && (*bytes)[0] >= 'a' && (*bytes)[0] <= 'z')
      letters.push_back(id);
  ASSERT_EQ(letters.size(), 26u);
  options.sampling = {.temperature = 2, .allowed_ids = letters, .seed = 6};
  const Ids prompt(letters.begin(), letters.begin() + 6);
  const Generation whole = generate(model, &tokenizer, {prompt}, options).rows[0];
  ASSERT_EQ(whole.text.size(), 60u);
  EXPECT_GE(whole.shifts, 5);
  for (size_t at = 3; at + 4 < 60; ++at) {  // across every place, shifts among them
    const std::string stop = whole.text.substr(at, 4);
    if (whole.text.find(stop) != at) continue;
    options.stop_strings = {stop};
    const Generation cut = generate(model, &tokenizer, {prompt}, options).rows[0];
    EXPECT_EQ(cut.text, whole.text.substr(0, at));
    EXPECT_EQ(cut.finish_reason, "stop");
  }
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
  test::expect_error(ErrorKind::usage, "context shift is not available with beam search", [&] {
    run_requests(model, nullptr, prompts, options, BeamOptions{.beams = 2});
  });
  Session session;
  options.session = &session;
  test::expect_error(ErrorKind::usage, "context shift is not available with sessions",
                     [&] { generate(model, nullptr, prompts, options); });
  const model::Model pair = tiny_pair(R"({"type": "attention", "n_heads": 2})", 3);
  options.session = nullptr;
  test::expect_error(ErrorKind::usage, "an encoder-decoder has no context shift",
                     [&] { generate(pair, nullptr, prompts, options); });
}

}  // namespace
}  // namespace tessera::infer::context_shift_test
