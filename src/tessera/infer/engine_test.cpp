#include "tessera/infer/engine.h"

#include <algorithm>
#include <stdexcept>

#include "tessera/base/testing.h"
#include "tessera/infer/generate.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::engine_test {
namespace {

using Ids = std::vector<int64_t>;

Request request_of(const model::Model& model, const Ids& prompt, int64_t tokens) {
  Request request{first_sequence(model.spec(), prompt)};
  request.writing.max_new_tokens = tokens;
  return request;
}

/// Greedy and sampled, short and long; some say more than others, one is a search.
std::vector<Request> mixed_requests(const model::Model& model) {
  std::vector<Request> requests;
  for (const auto& [length, tokens, temperature] :
       {std::tuple{9, 14, 0.0}, {40, 6, 0.9}, {2, 20, 0.7}, {21, 1, 1.5}, {33, 9, 0.0}}) {
    const auto seed = static_cast<uint64_t>(requests.size() + 1);
    requests.push_back(request_of(model, random_tokens(length, seed), tokens));
    requests.back().writing.sampling = {.temperature = temperature, .seed = seed};
  }
  requests[2].writing.sampling.repetition_penalty = 1.2;
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
                                           "long_rope",
                                           "encoder_decoder",
                                           "encoder_mamba2",
                                           "stateless"),
                         [](const auto& info) { return info.param; });

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
    good.writing.sampling = {.temperature = 0.3, .top_k = 4, .seed = 4};
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
  resumed.resumed = Kept{state, hidden[2]};
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
      request.writing.context = limit;
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
  request.writing.sampling.top_p = 2;
  refused(engine, request, ErrorKind::usage, "top_p = 2");
  request = request_of(model, {1, 2}, 3);
  request.begin.source = {3};
  refused(engine, request, ErrorKind::usage, "expected tokens and no source");
  request = request_of(model, {1, 2}, 3);
  request.beams = BeamOptions{.beams = 0};
  refused(engine, request, ErrorKind::usage, "a search of 0 beams");
  Engine answers(pair, {});
  EXPECT_FALSE(answers.step(1));
}

}  // namespace
}  // namespace tessera::infer::engine_test
