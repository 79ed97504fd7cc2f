#include "tessera/infer/engine/engine.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "tessera/base/testing.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

namespace tessera::infer::engine_test {
namespace {

using Ids = std::vector<int64_t>;

Request request_of(const model::Model& model, const Ids& prompt, int64_t tokens) {
  Request request{first_sequence(model.spec(), prompt)};
  request.decoding.max_new_tokens = tokens;
  return request;
}

/// Greedy and sampled, short and long; some say more than others, one is a search.
std::vector<Request> mixed_requests(const model::Model& model) {
  std::vector<Request> requests;
  for (const auto& [length, tokens, temperature] :
       {std::tuple{9, 14, 0.0}, {40, 6, 0.9}, {2, 20, 0.7}, {21, 1, 1.5}, {33, 9, 0.0}}) {
    const auto seed = static_cast<uint64_t>(requests.size() + 1);
    requests.push_back(request_of(model, random_tokens(length, seed), tokens));
    requests.back().decoding.sampling = {.temperature = temperature, .seed = seed};
  }
  requests[2].decoding.sampling.repetition_penalty = 1.2;
  requests.push_back(request_of(model, random_tokens(5, 9), 8));
  requests.back().beams = BeamOptions{.beams = 3};
  return requests;
}

Ids alone(const model::Model& model, const Request& request) {
  Engine engine(model, {});
  const Engine::Id id = engine.submit(request);
  while (engine.step(1024)) {
  }
  return engine.take(id).generation.token_ids;
}

/// All of them, each submitted `apart` steps after the one before.
std::vector<Ids> together(const model::Model& model,
                          const std::vector<Request>& requests,
                          const Engine::Options& options,
                          int64_t budget,
                          int64_t apart) {
  Engine engine(model, options);
  std::vector<Engine::Id> ids;
  for (const Request& request : requests) {
    ids.push_back(engine.submit(request));
    for (int64_t i = 0; i < apart; ++i) engine.step(budget);
  }
  while (engine.step(budget)) {
  }
  std::vector<Ids> said;
  for (const Engine::Id id : ids) said.push_back(engine.take(id).generation.token_ids);
  return said;
}

model::Model model_named(const std::string& name) {
  const std::string rope = R"({"type": "attention", "n_heads": 2, "position": "rope"})",
                    mamba2 = R"({"type": "mamba2", "n_heads": 4, "d_state": 8})";
  if (name == "encoder_decoder") return tiny_pair(rope, 7);
  if (name == "encoder_mamba2") return tiny_pair(mamba2, 7);
  if (name == "stateless")
    return tiny_model(
        R"({"mixer": {"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "chunk": 4}})", 7);
  for (const auto& [kind, layers] : tiny_memories())
    if (kind == name) return tiny_model(layers, 7);
  // relatives of attention, whose rows go side by side
  for (const auto& [kind, mixer] : std::map<std::string, std::string>{
           {"differential", R"({"type": "differential_attention", "n_heads": 2})"},
           {"multi_level",
            R"({"type": "multi_level_attention", "n_heads": 2, "position": "rope"})"},
           {"native_sparse", R"({"type": "native_sparse_attention", "n_heads": 2, "block": 4,
                                 "stride": 2, "select_block": 4, "window": 6})"},
           {"gau", R"({"type": "gau", "d_hidden": 20, "d_key": 8, "position": "rope"})"},
           {"flash_gau", R"({"type": "flash_gau", "d_hidden": 20, "d_key": 8, "group": 5})"},
           {"hyena", R"({"type": "hyena", "max_length": 128})"}})
    if (kind == name) return tiny_model(fmt::format(R"({{"repeat": 2, "mixer": {}}})", mixer), 7);
  throw std::logic_error("no model " + name);
}

class Together : public ::testing::TestWithParam<std::string> {};

TEST_P(Together, ARequestSaysWhatItSaysAlone) {
  const model::Model model = model_named(GetParam());
  const std::vector<Request> requests = mixed_requests(model);
  std::vector<Ids> want;
  for (const Request& request : requests) want.push_back(alone(model, request));
  for (const auto& [budget, apart] :
       {std::pair<int64_t, int64_t>{1024, 0}, {1, 1}, {5, 2}, {17, 1}, {64, 7}}) {
    SCOPED_TRACE(fmt::format("budget {} apart {}", budget, apart));
    EXPECT_EQ(together(model, requests, {}, budget, apart), want);
    if (GetParam() == "stateless") continue;
    EXPECT_EQ(together(model, requests, {.speculation = {nullptr, 3, 4}}, budget, apart), want);
    EXPECT_EQ(together(model, requests, {.speculation = {&model, 0, 3}}, budget, apart), want);
    PrefixCache cache(model, {.snapshot_every = 8, .least = 4});
    EXPECT_EQ(together(model, requests, {.cache = &cache}, budget, apart), want);
    EXPECT_EQ(together(model, requests, {.cache = &cache}, budget, apart), want);
    EXPECT_GT(cache.stats().hits, 0);
  }
}

/// What is said when it is let go of after some tokens, and goes on from them in another engine.
TEST_P(Together, WhatWasSaidGoesOnAsItWouldHave) {
  if (GetParam() == "stateless") GTEST_SKIP() << "it keeps nothing";
  const model::Model model = model_named(GetParam());
  for (Request& request : mixed_requests(model)) {
    if (request.beams) continue;
    request.logprobs = 1;
    const Ids want = alone(model, request);
    for (const size_t k : {size_t{1}, want.size() / 2, want.size()}) {
      Engine engine(model, {});
      Request again = request;
      again.generated = {want.begin(), want.begin() + static_cast<std::ptrdiff_t>(k)};
      Ids told;
      again.on_token = [&](int64_t id) { told.push_back(id); };
      const Engine::Id id = engine.submit(again);
      while (engine.step(7)) {
      }
      const Generation made = engine.take(id).generation;
      EXPECT_EQ(made.token_ids, want);
      EXPECT_EQ(told, Ids(want.begin() + static_cast<std::ptrdiff_t>(k), want.end()));
      EXPECT_EQ(made.finish_reason, "length");
      const Ids& prompt = again.prompt.source.empty() ? again.prompt.tokens : again.prompt.source;
      EXPECT_EQ(made.prompt_tokens, size_of(prompt));
    }
  }
}

/// Of every token behind each place, [T, vocab], in one pass.
Tensor log_p_in(const model::Model& model, const Sequence& text) {
  const at::NoGradGuard no_gradients;
  model::ForwardOptions forward;
  nn::Encoded encoded;
  if (!text.source.empty()) {
    encoded = model.encode(nn::Batch::of(std::vector<Ids>{text.source}));
    forward.encoded = &encoded;
  }
  nn::Batch batch = nn::Batch::of(std::vector<Ids>{text.tokens});
  batch.segments[0].prefix = text.prefix;
  return at::log_softmax(model.logits(model.hidden(batch, forward)).to(at::kDouble), -1);
}

/// ln p of every token behind the first `given`, of one pass without a state.
std::vector<double> log_p_of(const model::Model& model, const Sequence& text, int64_t given) {
  const Tensor log_p_TC = log_p_in(model, text);
  std::vector<double> out;
  for (size_t i = static_cast<size_t>(given); i < text.tokens.size(); ++i)
    out.push_back(log_p_TC[static_cast<int64_t>(i) - 1][text.tokens[i]].item<double>());
  return out;
}

void expect_log_p(const Generation& got, const std::vector<double>& want) {
  ASSERT_EQ(got.log_p.size(), want.size());
  double nats = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got.log_p[i], want[i], 1e-12) << i;
    nats -= want[i];
  }
  EXPECT_NEAR(got.score.nats, nats, 1e-10);
  EXPECT_EQ(got.score.targets, static_cast<int64_t>(want.size()));
}

// texts that are read for their likelihood alone, beside others that go on, of which some are asked
// for theirs too
TEST_P(Together, TargetsAreAnsweredAsByOnePass) {
  const model::Model model = model_named(GetParam());
  const bool pair = model.spec().encoder != nullptr;
  std::vector<Request> requests;
  std::vector<std::vector<double>> likely;
  std::vector<Ids> said;
  for (const auto& [length, given, tokens] :
       {std::tuple{40, 1, 0}, {40, 33, 0}, {23, 20, 0}, {12, 11, 6}, {21, 1, 3}, {9, 9, 4}}) {
    const Ids ids = random_tokens(length, 5 + length);
    const Sequence text = pair ? Sequence{random_tokens(7, 3), ids, 0} : Sequence{{}, ids, length};
    Request request = scoring(text, next_tokens(text, given));
    request.decoding.max_new_tokens = tokens;
    request.decoding.context = 100;
    likely.push_back(log_p_of(model, text, given));
    Request silent = request;
    silent.targets = {};
    said.push_back(alone(model, silent));
    requests.push_back(request);
  }
  requests.push_back(requests[3]);
  requests.back().beams = BeamOptions{.beams = 3};
  likely.push_back(likely[3]);
  Request silent = requests.back();
  silent.targets = {};
  said.push_back(alone(model, silent));
  const auto check = [&](const Engine::Options& options, int64_t budget, int64_t apart) {
    Engine engine(model, options);
    std::vector<Engine::Id> ids;
    for (const Request& request : requests) {
      ids.push_back(engine.submit(request));
      for (int64_t i = 0; i < apart; ++i) engine.step(budget);
    }
    while (engine.step(budget)) {
    }
    for (size_t r = 0; r < ids.size(); ++r) {
      SCOPED_TRACE(fmt::format("request {} budget {} apart {}", r, budget, apart));
      const Generation got = engine.take(ids[r]).generation;
      EXPECT_EQ(got.finish_reason, "length");
      EXPECT_EQ(got.token_ids, said[r]);
      expect_log_p(got, likely[r]);
    }
    EXPECT_EQ(engine.state().page_bytes(), 0);
  };
  for (const auto& [budget, apart] : {std::pair{1024, 0}, {1, 1}, {5, 2}, {17, 1}}) {
    check({}, budget, apart);
    if (GetParam() == "stateless") continue;
    check({.speculation = {nullptr, 3, 4}}, budget, apart);
    PrefixCache cache(model, {.snapshot_every = 8, .least = 4});
    check({.cache = &cache}, budget, apart);
    check({.cache = &cache}, budget, apart);
    EXPECT_GT(cache.stats().hits, 0);
  }
}

/// After n tokens those of n mod 3 may come; an even number of them from 4 on may be all, 11 are.
class Ladder final : public text::Constraint {
 public:
  class State final : public text::ConstraintState {
   public:
    std::unique_ptr<text::ConstraintState> clone() const override {
      return std::make_unique<State>(*this);
    }
    void allow(std::span<uint64_t> bits) const override {
      std::fill(bits.begin(), bits.end(), 0);
      for (int64_t id = n_ % 3; id < 22; id += 3) text::set_bit(bits, id);
    }
    bool accept(int64_t id) override {
      const bool good = id % 3 == n_ % 3 && n_ < 11;
      n_ += good ? 1 : 0;
      return good;
    }
    bool may_end() const override { return must_end() || (n_ >= 4 && n_ % 2 == 0); }
    bool must_end() const override { return n_ >= 11; }
    std::string expected() const override { return fmt::format("id {} mod 3", n_ % 3); }

   private:
    int64_t n_ = 0;
  };
  std::unique_ptr<text::ConstraintState> start() const override {
    return std::make_unique<State>();
  }
};

/// What a request says with its constraint at temperature 0, by one pass for every token.
Ids ladder_by_definition(const model::Model& model, const Request& request) {
  const at::NoGradGuard no_gradients;
  Sequence text = request.prompt;
  Ids said;
  const auto state = request.decoding.constraint->start();
  while (static_cast<int64_t>(said.size()) < request.decoding.max_new_tokens) {
    model::ForwardOptions forward;
    nn::Encoded encoded;
    if (!text.source.empty()) {
      encoded = model.encode(nn::Batch::of(std::vector<Ids>{text.source}));
      forward.encoded = &encoded;
    }
    nn::Batch batch = nn::Batch::of(std::vector<Ids>{text.tokens});
    batch.segments[0].prefix = text.prefix;
    const Tensor last = model.logits(model.hidden(batch, forward))[-1];
    int64_t best = -1;
    for (int64_t id = 0; id < 23; ++id) {
      const bool ends = id == request.decoding.stop_ids.at(0) && state->may_end();
      if ((id % 3 == static_cast<int64_t>(said.size()) % 3 && id < 22) || ends)
        if (best < 0 || last[id].item<float>() > last[best].item<float>()) best = id;
    }
    if (best == request.decoding.stop_ids[0] || !state->accept(best)) break;
    said.push_back(best);
    text.tokens.push_back(best);
  }
  return said;
}

// a mask holds for every token, alone or in a batch, with guesses and without
TEST_P(Together, AConstraintHolds) {
  const model::Model model = model_named(GetParam());
  std::vector<Request> requests;
  for (const auto& [length, tokens, temperature] :
       {std::tuple{9, 30, 0.0}, {3, 30, 1.5}, {17, 6, 0.0}, {21, 30, 3.0}, {5, 30, 0.0}}) {
    requests.push_back(request_of(model, random_tokens(length, 3 + length), tokens));
    requests.back().decoding.constraint = std::make_shared<Ladder>();
    requests.back().decoding.stop_ids = {22};
    requests.back().decoding.sampling = {.temperature = temperature, .seed = 5};
  }
  requests.push_back(request_of(model, random_tokens(9, 8), 12));
  std::vector<Ids> want;
  for (const Request& request : requests) {
    want.push_back(alone(model, request));
    if (!request.decoding.constraint) continue;
    for (size_t i = 0; i < want.back().size(); ++i) EXPECT_EQ(want.back()[i] % 3, i % 3);
    EXPECT_LE(want.back().size(), 11U);
    if (request.decoding.sampling.temperature == 0) {
      EXPECT_EQ(want.back(), ladder_by_definition(model, request));
    }
  }
  for (const auto& [budget, apart] : {std::pair<int64_t, int64_t>{1024, 0}, {1, 1}, {5, 2}}) {
    EXPECT_EQ(together(model, requests, {}, budget, apart), want);
    if (GetParam() == "stateless") continue;
    EXPECT_EQ(together(model, requests, {.speculation = {nullptr, 3, 4}}, budget, apart), want);
    EXPECT_EQ(together(model, requests, {.speculation = {&model, 0, 3}}, budget, apart), want);
  }
}

// choices read their beginning once, and each says what it says alone
TEST_P(Together, ChoicesShareTheirBeginning) {
  const model::Model model = model_named(GetParam());
  Request request = request_of(model, random_tokens(25, 4), 9);
  request.decoding.sampling = {.temperature = 1.5, .seed = 3};
  request.logprobs = 2;
  std::vector<Ids> want;
  std::vector<std::vector<PositionLogprobs>> logprobs;
  for (int64_t i = 0; i < 4; ++i) {
    Request own = request;
    own.decoding.choice = i;
    Engine engine(model, {});
    const auto id = engine.submit(own);
    while (engine.step(1024)) {
    }
    Generation got = engine.take(id).generation;
    want.push_back(got.token_ids);
    ASSERT_EQ(got.logprobs.size(), got.token_ids.size());
    Sequence text = own.prompt;
    for (size_t t = 0; t < got.token_ids.size(); ++t) {
      // by a pass for each token: in some models those that follow change what is said of it
      const double likely = log_p_in(model, text)[-1][got.token_ids[t]].item<double>();
      text.tokens.push_back(got.token_ids[t]);
      EXPECT_NEAR(got.logprobs[t].chosen.log_p, likely, 1e-5);
      EXPECT_EQ(got.logprobs[t].chosen.id, got.token_ids[t]);
      EXPECT_EQ(got.logprobs[t].top.size(), 2U);
    }
    logprobs.push_back(std::move(got.logprobs));
  }
  EXPECT_NE(want[0], want[1]);
  EXPECT_NE(want[1], want[2]);
  const auto check = [&](const Engine::Options& options, int64_t budget, bool gone) {
    SCOPED_TRACE(fmt::format("budget {} gone {}", budget, gone));
    Engine engine(model, options);
    const auto other = engine.submit(request_of(model, random_tokens(12, 1), 30));
    const auto ids = engine.submit_choices(request, 4);
    if (gone) engine.cancel(ids[0]);
    while (engine.step(budget)) {
    }
    engine.take(other);
    for (size_t i = 0; i < 4; ++i) {
      const Generation got = engine.take(ids[i]).generation;
      if (gone && i == 0) {
        EXPECT_EQ(got.finish_reason, "cancelled");
        continue;
      }
      EXPECT_EQ(got.token_ids, want[i]) << i;
      ASSERT_EQ(got.logprobs.size(), logprobs[i].size());
      for (size_t t = 0; t < got.logprobs.size(); ++t) {
        EXPECT_EQ(got.logprobs[t].chosen.log_p, logprobs[i][t].chosen.log_p);
        EXPECT_EQ(got.logprobs[t].top[1].id, logprobs[i][t].top[1].id);
      }
      EXPECT_EQ(got.prompt_tokens, 25);
      if (GetParam() != "stateless" && options.cache == nullptr && !gone) {
        EXPECT_EQ(got.cached_tokens, i == 0 ? 0 : 25) << i;
      }
    }
    if (GetParam() != "stateless" && !gone && options.cache == nullptr) {
      EXPECT_EQ(engine.counts().prefill_tokens, 25 + 12);
    }
    EXPECT_EQ(engine.state().page_bytes(), 0);
  };
  for (const bool gone : {false, true})
    for (const int64_t budget : {1024, 7}) {
      check({}, budget, gone);
      if (GetParam() == "stateless") continue;
      check({.speculation = {nullptr, 3, 4}}, budget, gone);
      check({.speculation = {&model, 0, 3}}, budget, gone);
      PrefixCache cache(model, {.snapshot_every = 8, .least = 4});
      check({.cache = &cache}, budget, gone);
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         Together,
                         ::testing::Values("attention",
                                           "window",
                                           "mamba2",
                                           "rwkv7",
                                           "hybrid",
                                           "latent",
                                           "sinks",
                                           "transformer_xl",
                                           "memorizing",
                                           "local",
                                           "differential",
                                           "multi_level",
                                           "native_sparse",
                                           "gau",
                                           "flash_gau",
                                           "hyena",
                                           "long_rope",
                                           "encoder_decoder",
                                           "encoder_mamba2",
                                           "stateless"),
                         [](const auto& info) { return info.param; });

// what was likely in the place of each token of a prompt, as `echo` shows it
TEST(Engine, TargetsComeWithWhatWasLikely) {
  const model::Model model = model_named("attention");
  const Sequence text{{}, random_tokens(30, 1), 30};
  Targets targets = next_tokens(text);
  targets.top = 3;
  Engine engine(model, {});
  const Engine::Id id = engine.submit(scoring(text, targets));
  while (engine.step(7)) {
  }
  const Generation got = engine.take(id).generation;
  const at::NoGradGuard no_gradients;
  const Tensor log_p_TC = at::log_softmax(
      model.logits(model.hidden(nn::Batch::of(std::vector<Ids>{text.tokens}))).to(at::kDouble), -1);
  const auto [values, ids] = log_p_TC.topk(3);
  ASSERT_EQ(got.target_top.size(), 29U);
  for (int64_t t = 0; t < 29; ++t)
    for (int64_t k = 0; k < 3; ++k) {
      const TokenLogprob& chance =
          got.target_top[static_cast<size_t>(t)].at(static_cast<size_t>(k));
      EXPECT_EQ(chance.id, ids[t][k].item<int64_t>());
      EXPECT_NEAR(chance.log_p, values[t][k].item<double>(), 1e-5);
    }
}

TEST(Engine, AConstrainedTextThatIsCutSaysWhere) {
  const model::Model model = model_named("attention");
  Request request = request_of(model, random_tokens(9, 1), 3);
  request.decoding.constraint = std::make_shared<Ladder>();
  Engine engine(model, {});
  const Engine::Id cut = engine.submit(request);
  request.decoding.max_new_tokens = 20;
  const Engine::Id whole = engine.submit(request);
  while (engine.step(64)) {
  }
  const Generation short_one = engine.take(cut).generation, all = engine.take(whole).generation;
  EXPECT_EQ(short_one.finish_reason, "length");
  EXPECT_EQ(short_one.cut, "after 3 new tokens; expected id 0 mod 3");
  // without a token for the end it comes where nothing else is left
  EXPECT_EQ(all.finish_reason, "stop");
  EXPECT_EQ(all.token_ids.size(), 11U);
  EXPECT_EQ(all.cut, "");
  request.beams = BeamOptions{};
  test::expect_error(ErrorKind::usage, "a search with a constraint",
                     [&] { engine.submit(request); });
  request.beams.reset();
  request.decoding.forced_begin = {1};
  test::expect_error(ErrorKind::usage, "constrained decoding with forced ids",
                     [&] { engine.submit(request); });
}

TEST(Engine, NoEndComesBeforeTheLeastLength) {
  const model::Model model = model_named("attention");
  Request request = request_of(model, random_tokens(9, 1), 12);
  // every token ends the text
  for (int64_t id = 0; id < 22; ++id) request.decoding.stop_ids.push_back(id);
  EXPECT_LT(alone(model, request).size(), 12U);
  request.decoding.min_new_tokens = 8;
  const Ids said = alone(model, request);
  ASSERT_GE(said.size(), 8U);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(said[i], 22);
}

// guesses and prefill in one call
TEST(Engine, GuessesGoOnBesideAPrompt) {
  const model::Model model = model_named("hybrid");
  Engine engine(model, {.speculation = {&model, 0, 3}});
  const Request first = request_of(model, random_tokens(4, 1), 40),
                second = request_of(model, random_tokens(60, 2), 4);
  const Engine::Id a = engine.submit(first);
  engine.step(64);
  const Engine::Id b = engine.submit(second);
  // the prompt takes four calls, in each of which the other goes on by its guesses and one
  for (int64_t i = 1; i <= 3; ++i) {
    engine.step(20);
    EXPECT_EQ(engine.counts().accepted_tokens, 3 * i);
    EXPECT_EQ(engine.state().length(1), 16 * i);
  }
  while (engine.step(20)) {
  }
  EXPECT_EQ(engine.take(a).generation.token_ids, alone(model, first));
  EXPECT_EQ(engine.take(b).generation.token_ids, alone(model, second));
}

TEST(Engine, WhatIsExpectedIsGuessed) {
  const model::Model model = model_named("hybrid");
  Request request = request_of(model, random_tokens(6, 1), 24);
  request.decoding.sampling = {.temperature = 0.8, .seed = 3};
  const Ids said = alone(model, request);
  // the answer with another token in its middle
  request.predicted = said;
  request.predicted[12] = (said[12] + 1) % model.spec().vocab;
  Engine engine(model, {.speculation = {.lookup = 4, .draft_tokens = 4}});
  const Engine::Id id = engine.submit(request);
  int64_t steps = 0;
  while (engine.step(64)) ++steps;
  const Generation got = engine.take(id).generation;
  EXPECT_EQ(got.token_ids, said);
  EXPECT_GT(got.accepted_tokens, 12);
  EXPECT_LT(got.accepted_tokens, got.drafted_tokens);
  EXPECT_EQ(engine.counts().accepted_tokens, got.accepted_tokens);
  EXPECT_LT(steps, 12);
}

TEST(Engine, PromptsAreCutAndDecodingRowsGoOn) {
  const model::Model model = model_named("attention");
  Engine engine(model, {});
  std::vector<int64_t> said;
  Request first = request_of(model, random_tokens(3, 1), 100);
  first.on_token = [&](int64_t id) { said.push_back(id); };
  engine.submit(first);
  engine.step(8);
  engine.submit(request_of(model, random_tokens(200, 2), 1));
  for (size_t steps = 2; steps < 8; ++steps) {
    engine.step(33);
    EXPECT_EQ(said.size(), steps);                                              // one a step
    EXPECT_EQ(engine.state().length(1), 32 * static_cast<int64_t>(steps - 1));  // beside 32 of 200
  }
}

// a short question does not wait until a long one is read, nor a long one until no short one comes
TEST(Engine, AShortPromptPassesALongOne) {
  const model::Model model = model_named("attention");
  Engine engine(model, {});
  const Request first = request_of(model, random_tokens(200, 2), 3);
  const Engine::Id long_one = engine.submit(first);
  int64_t begun = 0;
  for (uint64_t i = 1; i <= 6; ++i) {
    // two come where the step has room for one beside its share of the long one
    for (const uint64_t seed : {2 * i, 2 * i + 1}) {
      Request request = request_of(model, random_tokens(16, seed), 1);
      request.on_token = [&](int64_t) { ++begun; };
      engine.submit(request);
    }
    engine.step(32);
    EXPECT_EQ(begun, static_cast<int64_t>(i));
    EXPECT_EQ(engine.state().length(0), 16 * static_cast<int64_t>(i));
  }
  while (engine.step(32)) {
  }
  EXPECT_EQ(begun, 12);
  EXPECT_EQ(engine.take(long_one).generation.token_ids, alone(model, first));
}

// what is asked for is computed, and nothing before it that somebody has computed already
TEST(Engine, TargetsBeginWhereACacheEnds) {
  const model::Model model = model_named("attention");
  PrefixCache cache(model, {.least = 4});
  const Sequence text{{}, random_tokens(30, 1), 30};
  for (const auto& [given, cached] : {std::pair<int64_t, int64_t>{1, 0}, {21, 20}, {3, 0}}) {
    Engine engine(model, {.cache = &cache});
    const Engine::Id id = engine.submit(scoring(text, next_tokens(text, given)));
    while (engine.step(64)) {
    }
    const Generation got = engine.take(id).generation;
    EXPECT_EQ(got.cached_tokens, cached) << given;
    expect_log_p(got, log_p_of(model, text, given));
  }
}

TEST(Engine, WhatIsReadGoesOn) {
  for (const char* name : {"attention", "window", "hybrid"}) {
    SCOPED_TRACE(name);
    const model::Model model = model_named(name);
    const Sequence all{{}, random_tokens(50, 1), 0};
    Engine engine(model, {});
    std::vector<double> log_p;
    std::optional<SavedState> kept;
    for (const auto& [from, to] : {std::pair{0, 17}, {17, 18}, {18, 50}}) {
      const Sequence text{{}, {all.tokens.begin(), all.tokens.begin() + to}, 0};
      Targets next{from,
                   {all.tokens.begin() + from + 1, all.tokens.begin() + std::min(50, to + 1)}};
      Request request = scoring(text, next);
      request.keep = true;
      request.resume_from = std::move(kept);
      const Engine::Id id = engine.submit(request);
      while (engine.step(64)) {
      }
      Engine::Result result = engine.take(id);
      kept = std::move(result.kept);
      log_p.insert(log_p.end(), result.generation.log_p.begin(), result.generation.log_p.end());
    }
    const std::vector<double> want = log_p_of(model, all, 1);
    ASSERT_EQ(log_p.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(log_p[i], want[i], 1e-12) << i;
  }
}

// any token may be asked for, of any model with a head
TEST(Engine, AnEncoderIsAskedForItsTokens) {
  const model::Model model = tiny_model_of(
      R"({"tessera": 1, "arch": "encoder", "vocab": 23, "d_model": 16, "head": "linear",
          "ffn": {"type": "mlp", "d_hidden": 24}, "layers": [{"repeat": 2}],
          "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}})",
      7);
  Engine engine(model, {});
  std::vector<Engine::Id> ids;
  std::vector<std::vector<double>> want;
  const at::NoGradGuard no_gradients;
  for (const int64_t length : {9, 30, 4}) {
    const Ids tokens = random_tokens(length, 2);
    const Tensor log_p_TC = at::log_softmax(
        model.logits(model.hidden(nn::Batch::of(std::vector<Ids>{tokens}))).to(at::kDouble), -1);
    ids.push_back(engine.submit(scoring({{}, tokens, 0}, {1, {22, -1, 0}})));
    want.push_back({log_p_TC[1][22].item<double>(), log_p_TC[3][0].item<double>()});
  }
  while (engine.step(16)) {
  }
  for (size_t i = 0; i < ids.size(); ++i) expect_log_p(engine.take(ids[i]).generation, want[i]);
  test::expect_error(ErrorKind::usage, "is an encoder and cannot generate", [&] {
    engine.submit(request_of(model, {1, 2}, 3));
  });
}

TEST(Engine, SlotsAreStableAndUsedAgain) {
  const model::Model model = model_named("attention");
  Engine engine(model, {});
  const Engine::Id a = engine.submit(request_of(model, random_tokens(9, 1), 3));
  engine.submit(request_of(model, random_tokens(9, 2), 30));
  while (!engine.done(a)) engine.step(64);
  const int64_t before = engine.state().length(1);
  engine.step(64);
  EXPECT_EQ(engine.state().length(1), before + 1);
  EXPECT_EQ(engine.state().length(0), 0);
  engine.submit(request_of(model, random_tokens(5, 3), 3));
  engine.step(64);
  EXPECT_EQ(engine.state().rows(), 2);
  EXPECT_EQ(engine.state().length(0), 5);
}

TEST(Engine, ACancelledRequestEndsAloneAndLeavesNothing) {
  const model::Model model = model_named("hybrid");
  Engine engine(model, {});
  const Request first = request_of(model, random_tokens(9, 1), 50),
                second = request_of(model, random_tokens(30, 2), 20);
  const Engine::Id a = engine.submit(first), b = engine.submit(second);
  CancelToken token;
  Request third = request_of(model, random_tokens(11, 3), 50);
  third.cancel = &token;
  const Engine::Id c = engine.submit(third);
  for (int64_t i = 0; i < 6; ++i) engine.step(16);
  engine.cancel(a);
  token.request();
  while (engine.step(16)) {
  }
  for (const auto& [id, request] : {std::pair{a, first}, {c, third}}) {
    Generation ended = engine.take(id).generation;
    EXPECT_EQ(ended.finish_reason, "cancelled");
    Request unhindered = request;
    unhindered.cancel = nullptr;
    Ids whole = alone(model, unhindered);
    ASSERT_LT(ended.token_ids.size(), whole.size());
    whole.resize(ended.token_ids.size());
    EXPECT_EQ(ended.token_ids, whole);
  }
  EXPECT_EQ(engine.take(b).generation.token_ids, alone(model, second));
  EXPECT_EQ(engine.state().page_bytes(), 0);
}

// token 22 is none that can be read
model::Model broken(const std::string& name) {
  model::Model model = model_named(name);
  const at::NoGradGuard no_gradients;
  model.weights().find("embed.token.weight")->dense_tensor()[22].fill_(NAN);
  return model;
}

TEST(Engine, ARowOfBadLogitsEndsAlone) {
  for (const char* name : {"attention", "window", "mamba2"}) {
    SCOPED_TRACE(name);
    const model::Model model = broken(name), whole = model_named(name);
    Engine engine(model, {});
    Ids bad = random_tokens(12, 1, 22);
    bad[5] = 22;
    Request good = request_of(model, random_tokens(20, 2, 22), 12);
    good.decoding.sampling = {.temperature = 0.3, .top_k = 4, .seed = 4};
    const Engine::Id a = engine.submit(request_of(model, bad, 9)), b = engine.submit(good);
    while (engine.step(16)) {
    }
    Generation ended = engine.take(a).generation;
    EXPECT_EQ(ended.finish_reason, "error");
    test::expect_error(ErrorKind::input, "no finite logit",
                       [&] { std::rethrow_exception(ended.error); });
    const Ids said = engine.take(b).generation.token_ids, want = alone(model, good);
    EXPECT_EQ(said, want);
    EXPECT_GE(said.size(), 1u);
    EXPECT_EQ(engine.state().page_bytes(), 0);
  }
}

TEST(Engine, AListenerThatThrowsEndsItsRequestAlone) {
  const model::Model model = model_named("attention");
  Engine engine(model, {});
  Request first = request_of(model, random_tokens(9, 1), 20);
  int64_t heard = 0;
  first.on_token = [&](int64_t) {
    if (++heard == 3) throw std::runtime_error("gone");
  };
  const Request second = request_of(model, random_tokens(9, 2), 20);
  const Engine::Id a = engine.submit(first), b = engine.submit(second);
  while (engine.step(16)) {
  }
  EXPECT_EQ(engine.take(a).generation.finish_reason, "error");
  EXPECT_EQ(heard, 3);
  EXPECT_EQ(engine.take(b).generation.token_ids, alone(model, second));
}

// a call that begins within a prefix is refused: the rows of it are computed anew, and say the same
TEST(Engine, ACallThatFailsCostsItsRowsNothingButTime) {
  const model::Model model = tiny_model(
      R"({"mixer": {"type": "attention", "n_heads": 2, "position": "rope",
                    "pattern": {"type": "prefix"}}},
         {"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}})",
      7);
  const Request first = request_of(model, random_tokens(9, 1), 12),
                second = request_of(model, random_tokens(8, 2), 12);
  Engine engine(model, {});
  // a memory of three tokens, of a text that says that its first eight are the prefix
  Request resumed = second;
  model::State state(model.spec(), 1);
  model::ForwardOptions forward;
  forward.state = &state;
  nn::Batch batch = nn::Batch::of(std::vector<Ids>{{1, 2, 3}});
  batch.segments[0].prefix = 3;
  const at::NoGradGuard no_gradients;
  const Tensor hidden = model.hidden(batch, forward);
  resumed.resume_from = SavedState{state, hidden[2]};
  const Engine::Id a = engine.submit(first);
  for (int64_t i = 0; i < 3; ++i) engine.step(16);
  const Engine::Id b = engine.submit(resumed);
  while (engine.step(16)) {
  }
  EXPECT_EQ(engine.take(a).generation.token_ids, alone(model, first));
  EXPECT_EQ(engine.take(b).generation.token_ids, alone(model, second));
}

// what a row may come to costs nothing
TEST(Engine, ARowsMemoryIsWhatItHasWritten) {
  for (const auto& [name, layers] : tiny_memories()) {
    SCOPED_TRACE(name);
    const model::Model model = tiny_model(layers, 7);
    int64_t bytes[2] = {0, 0};
    for (const int64_t limit : {int64_t{30}, int64_t{1} << 40}) {
      Engine engine(model, {});
      Request request = request_of(model, random_tokens(9, 1), limit);
      request.decoding.context = limit;
      engine.submit(request);
      for (int64_t i = 0; i < 12; ++i) engine.step(64);
      EXPECT_EQ(engine.state().length(0), 9 + 11);
      bytes[limit > 30] = engine.state().page_bytes();
    }
    EXPECT_EQ(bytes[0], bytes[1]);
    EXPECT_LT(bytes[1], int64_t{1} << 18);
  }
}

TEST(Engine, RefusesWhatItCannotServe) {
  const model::Model model = model_named("attention"), pair = model_named("encoder_decoder");
  Engine engine(model, {});
  const auto refused = [](Engine& e, const Request& request, ErrorKind kind, const char* what) {
    test::expect_error(kind, what, [&] { e.submit(request); });
  };
  refused(engine, request_of(model, {}, 3), ErrorKind::input, "the prompt is empty");
  refused(engine, request_of(model, {1, 23}, 3), ErrorKind::input, "token id 23");
  Request request = request_of(model, {1, 2}, 3);
  request.decoding.sampling.top_p = 2;
  refused(engine, request, ErrorKind::usage, "top_p = 2");
  request = request_of(model, {1, 2}, 3);
  request.prompt.source = {3};
  refused(engine, request, ErrorKind::usage, "expected tokens and no source");
  request = request_of(model, {1, 2}, 3);
  request.beams = BeamOptions{.beams = 0};
  refused(engine, request, ErrorKind::usage, "a search of 0 beams");
  request = request_of(model, {1, 2, 3}, 0);
  request.targets = {1, {4, 5, 6}};
  refused(engine, request, ErrorKind::usage, "targets at tokens 1 to 4; expected some of 0 to 3");
  request.targets = {-1, {4}};
  refused(engine, request, ErrorKind::usage, "targets at tokens -1 to 0");
  request.targets = {0, {4, -2}};
  refused(engine, request, ErrorKind::input, "target -2; expected 0 to 22");
  request.targets = {0, {23}};
  refused(engine, request, ErrorKind::input, "target 23");
  Engine answers(pair, {});
  EXPECT_FALSE(answers.step(1));
}

/// Tokens "a" to "v" from 0 on, and a line's end, the last.
text::Tokenizer lines_tokenizer() {
  spec::Json file = text::empty_tokenizer_json(spec::Json::array()), vocabulary;
  for (int i = 0; i < 22; ++i) vocabulary[std::string(1, static_cast<char>('a' + i))] = i;
  vocabulary["\n"] = 22;
  file["model"] = text::bpe_json(vocabulary, spec::Json::array());
  return text::tokenizer_from_json(file.dump(), "test");
}

TEST(Engine, BeyondItsTimeATextEndsWithItsLine) {
  const model::Model model = tiny_model(tiny_layers()[0].second, 7);
  const text::Tokenizer tokenizer = lines_tokenizer();
  const auto ended = [&](const Ids& allowed, const auto& change) {
    Request request = request_of(model, {1, 2, 3}, 6);
    request.decoding.sampling.allowed_ids = allowed;
    request.decoding.line_limit = std::chrono::milliseconds(1);
    // each token takes longer than all of them may
    request.on_token = [](int64_t) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
    change(request);
    Engine engine(model, {.tokenizer = &tokenizer});
    const Engine::Id id = engine.submit(request);
    while (engine.step(1024)) {
    }
    const Generation made = engine.take(id).generation;
    return std::pair(made.token_ids.size(), made.limit);
  };
  const auto as_is = [](Request&) {};
  using Ended = std::pair<size_t, Limit>;
  // the time begins with the first token
  EXPECT_EQ(ended({22}, as_is), Ended(2, Limit::time));
  EXPECT_EQ(ended({3}, as_is), Ended(6, Limit::new_tokens));
  EXPECT_EQ(ended({22}, [](Request& r) { r.decoding.line_limit = {}; }),
            Ended(6, Limit::new_tokens));
  EXPECT_EQ(ended({22}, [](Request& r) { r.decoding.line_limit = std::chrono::hours(1); }),
            Ended(6, Limit::new_tokens));
  // what was said before it was let go of stays, and its time has gone on
  EXPECT_EQ(ended({22},
                  [](Request& r) {
                    r.generated = {22, 22, 22};
                    r.generated_since = std::chrono::steady_clock::now() - std::chrono::hours(1);
                  }),
            Ended(4, Limit::time));
  Request search = request_of(model, {1, 2}, 3);
  search.beams = BeamOptions{.beams = 2};
  search.decoding.line_limit = std::chrono::milliseconds(1);
  Engine engine(model, {});
  test::expect_error(ErrorKind::usage, "a limit of time", [&] { engine.submit(search); });
}

}  // namespace
}  // namespace tessera::infer::engine_test
