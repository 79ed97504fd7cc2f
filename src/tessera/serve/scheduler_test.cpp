// Whose turn it is, and that what is said does not depend on it.
#include "tessera/serve/scheduler.h"

#include <future>

#include "tessera/infer/engine/generate.h"
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::scheduler_test {
namespace {

using Ids = std::vector<int64_t>;

ServedModelPtr served(const std::string& kind, int64_t cache_bytes = 0) {
  ModelOptions options;
  options.cache_bytes = cache_bytes;
  return std::make_shared<ServedModel>(ModelEntry{.id = kind, .path = kind}, tiny_loaded(kind),
                                       options);
}

infer::Request request_of(const ServedModel& model, uint64_t seed, int64_t prompt, int64_t tokens) {
  infer::Request request{
      infer::first_sequence(model.spec(), infer::random_tokens(prompt, seed, model.spec().vocab))};
  request.decoding.max_new_tokens = tokens;
  request.decoding.sampling = {.temperature = seed % 3 == 0 ? 0 : 0.9, .seed = seed};
  if (seed % 4 == 1) request.decoding.sampling.presence_penalty = 0.5;
  if (seed % 4 == 2) request.decoding.sampling.repetition_penalty = 1.2;
  request.logprobs = 1;
  return request;
}

/// What it says by itself.
infer::Generation alone(const ServedModel& model, const infer::Request& request) {
  infer::Engine engine(model.loaded.model, {.tokenizer = &model.tokenizer()});
  const auto id = engine.submit(request);
  while (engine.step(1024)) {
  }
  return engine.take(id).generation;
}

/// What a client has been told.
struct Told {
  Ids ids = {};
  std::string text = {};
  std::vector<double> log_p = {};
  std::string finish = {};
  std::promise<void> ended = {};

  bool is(const infer::Generation& want) const {
    std::vector<double> wanted;
    for (const infer::PositionLogprobs& logprobs : want.logprobs)
      wanted.push_back(logprobs.chosen.log_p);
    return ids == want.token_ids && text == want.text && log_p == wanted &&
           finish == want.finish_reason;
  }
};

/// A job of one text that tells `told`; `each` is called behind every token, `then` at the end.
ScheduledRequest job_of(const ServedModelPtr& model,
                        infer::Request request,
                        Told& told,
                        const std::function<void()>& each = {},
                        const std::function<void()>& then = {}) {
  ScheduledRequest job;
  job.model = model;
  job.prompt_tokens = infer::size_of(request.prompt.tokens);
  job.row_bytes = model->state_bytes(job.prompt_tokens + request.decoding.max_new_tokens, 0);
  request.on_token = [&told, each](int64_t id) {
    told.ids.push_back(id);
    if (each) each();
  };
  request.on_text = [&told](std::string_view text) { told.text += text; };
  request.on_logprobs = [&told](const infer::PositionLogprobs& logprobs) {
    told.log_p.push_back(logprobs.chosen.log_p);
  };
  job.requests.push_back(std::move(request));
  job.on_end = [&told, then](std::vector<infer::Generation> made, FinishStatus ending,
                             std::exception_ptr) {
    told.finish = ending == FinishStatus::done ? made.at(0).finish_reason : "not done";
    if (then) then();
    told.ended.set_value();
  };
  return job;
}

class EveryState : public ::testing::TestWithParam<std::string> {};

// a text gives way twice, and not a third time; nobody hears of it
TEST_P(EveryState, ATextThatGaveWayGoesOnAsItWouldHave) {
  Metrics metrics;
  Scheduler loop({.parallel = 1, .priorities = true}, metrics);
  const ServedModelPtr model = served(GetParam());
  const infer::Request low = request_of(*model, 7, 9, 60);
  const std::vector<infer::Request> high = {
      request_of(*model, 8, 5, 6), request_of(*model, 9, 20, 3), request_of(*model, 10, 4, 5)};
  std::vector<std::string> order;
  Told slow;
  std::vector<Told> quick(3);
  loop.submit(job_of(
      model, low, slow,
      [&] {
        for (size_t i = 0; i < 3; ++i)
          if (slow.ids.size() == 10 * (i + 1)) {
            ScheduledRequest job = job_of(model, high[i], quick[i], {},
                                          [&order, i] { order.push_back(std::to_string(i)); });
            job.priority = -1;
            loop.submit(std::move(job));
          }
      },
      [&] { order.push_back("slow"); }));
  slow.ended.get_future().get();
  for (Told& one : quick) one.ended.get_future().get();
  EXPECT_TRUE(slow.is(alone(*model, low))) << slow.text;
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(quick[i].is(alone(*model, high[i]))) << i;
  EXPECT_EQ(order, (std::vector<std::string>{"0", "1", "slow", "2"}));
  EXPECT_EQ(metrics.value("preemptions_total"), 2);
  EXPECT_EQ(metrics.value("recomputed_tokens_total"), 9 + 10 + 9 + 20);
  EXPECT_EQ(metrics.value("generated_tokens_total"), 60 + 6 + 3 + 5);
}

// states grow beyond their memory, and the texts that came last let go of theirs
TEST_P(EveryState, TextsAreTheSameWhereStatesDoNotFit) {
  const ServedModelPtr model = served(GetParam());
  const int64_t row = model->state_bytes(10 + 200, 0);
  Metrics metrics;
  Scheduler loop({.parallel = 8, .state_bytes = 3 * row}, metrics);
  std::vector<infer::Request> requests;
  std::vector<Told> told(6);
  for (uint64_t i = 0; i < 6; ++i) requests.push_back(request_of(*model, i, 10, 200));
  for (size_t i = 0; i < 6; ++i) loop.submit(job_of(model, requests[i], told[i]));
  for (size_t i = 0; i < 6; ++i) {
    told[i].ended.get_future().get();
    EXPECT_TRUE(told[i].is(alone(*model, requests[i]))) << i;
  }
  const bool grows = model->state_bytes(100, 0) > model->state_bytes(50, 0);
  EXPECT_EQ(metrics.value("preemptions_total") > 0, grows);
  EXPECT_EQ(metrics.value("generated_tokens_total"), 6 * 200);
}

// a text whose client does not read gives its place to others, and its state where they need it
TEST_P(EveryState, ATextThatRestsGoesOnAsItWouldHave) {
  const ServedModelPtr model = served(GetParam());
  const infer::Request slow = request_of(*model, 7, 9, 120), quick = request_of(*model, 8, 40, 60);
  for (const bool narrow : {false, true}) {
    SCOPED_TRACE(narrow);
    Metrics metrics;
    Scheduler loop({.parallel = 1, .state_bytes = narrow ? model->state_bytes(9 + 120, 0) : 0},
                   metrics);
    std::atomic<bool> behind{false};
    Told first, second;
    std::vector<std::string> order;
    ScheduledRequest job = job_of(
        model, slow, first,
        [&] {
          if (first.ids.size() == 20) behind = true;
        },
        [&] { order.push_back("first"); });
    job.on_step = [] {};
    job.client_is_slow = [&] { return behind.load(); };
    loop.submit(std::move(job));
    loop.submit(job_of(model, quick, second, {}, [&] {
      order.push_back("second");
      behind = false;
    }));
    second.ended.get_future().get();
    first.ended.get_future().get();
    EXPECT_EQ(order, (std::vector<std::string>{"second", "first"}));
    EXPECT_TRUE(first.is(alone(*model, slow)));
    EXPECT_TRUE(second.is(alone(*model, quick)));
    EXPECT_EQ(metrics.value("preemptions_total"), narrow ? 1 : 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Scheduler,
                         EveryState,
                         ::testing::Values("attention", "window", "mamba2", "rwkv7", "hybrid"),
                         [](const auto& one) { return one.param; });

// many of every kind with all priorities, a new one every few tokens; some leave
TEST(Scheduler, NobodyIsMixedUpAmongManyThatGiveWay) {
  Metrics metrics;
  std::vector<ServedModelPtr> models;
  for (const char* kind : {"attention", "window", "mamba2", "rwkv7", "hybrid"})
    models.push_back(served(kind, int64_t{1} << 20));
  constexpr size_t kJobs = 150;
  std::vector<infer::Request> requests;
  std::vector<Told> told(kJobs);
  std::vector<CancelToken> disconnected(kJobs);
  for (size_t i = 0; i < kJobs; ++i) {
    const auto prompt = static_cast<int64_t>(1 + 5 * i % 40),
               tokens = static_cast<int64_t>(8 + 11 * i % 30);
    requests.push_back(request_of(*models[i % models.size()], i % 40, prompt, tokens));
  }
  int64_t row = 0;
  for (const ServedModelPtr& model : models) row = std::max(row, model->state_bytes(80, 0));
  Scheduler loop({.parallel = 3, .state_bytes = 3 * row, .step_ms = 1, .priorities = true},
                 metrics);
  size_t next = 0, tokens = 0;
  std::function<void()> submit = [&] {
    if (next == kJobs) return;
    const size_t i = next++;
    ScheduledRequest job = job_of(
        models[i % models.size()], requests[i], told[i],
        [&, i] {
          if (i % 11 == 5 && told[i].ids.size() == 4) disconnected[i].request();
          if (++tokens % 4 == 0) submit();
        },
        [&] { submit(); });
    job.disconnected = &disconnected[i];
    // later ones are more urgent, in waves
    job.priority = 10 - static_cast<int64_t>(i % 15);
    loop.submit(std::move(job));
  };
  submit();
  for (size_t i = 0; i < kJobs; ++i) {
    told[i].ended.get_future().get();
    const infer::Generation want = alone(*models[i % models.size()], requests[i]);
    if (i % 11 == 5)
      EXPECT_EQ(told[i].ids, Ids(want.token_ids.begin(), want.token_ids.begin() + 4));
    else
      EXPECT_TRUE(told[i].is(want)) << i;
  }
  EXPECT_GE(metrics.value("preemptions_total"), kJobs / 10);
}

// who asks for much waits for who asks for little
TEST(Scheduler, ClientsTakeTurns) {
  Metrics metrics;
  Scheduler loop({.parallel = 1}, metrics);
  const ServedModelPtr model = served("attention");
  std::vector<std::string> order;
  std::vector<Told> told(8);
  Told blocker;
  const auto submit = [&](const std::string& client, size_t which) {
    ScheduledRequest job = job_of(model, request_of(*model, 1 + which, 5, 8), told[which], {},
                                  [&order, client] { order.push_back(client); });
    job.client = client;
    loop.submit(std::move(job));
  };
  ScheduledRequest first = job_of(model, request_of(*model, 3, 4, 30), blocker, [&] {
    if (blocker.ids.size() != 5) return;
    for (size_t i = 0; i < 4; ++i) submit("many", i);
    submit("few", 4);
    submit("some", 5);
    submit("some", 6);
    submit("few", 7);
  });
  first.client = "many";
  loop.submit(std::move(first));
  blocker.ended.get_future().get();
  for (Told& one : told) one.ended.get_future().get();
  EXPECT_EQ(order, (std::vector<std::string>{"few", "some", "some", "few", "many", "many", "many",
                                             "many"}));
}

TEST(Scheduler, PrioritiesGoFirst) {
  Metrics metrics;
  Scheduler loop({.parallel = 1, .priorities = true}, metrics);
  const ServedModelPtr model = served("mamba2");
  std::vector<int64_t> order;
  std::vector<Told> told(4);
  Told blocker;
  ScheduledRequest first = job_of(model, request_of(*model, 3, 4, 12), blocker, [&] {
    if (blocker.ids.size() != 5) return;
    for (const int64_t priority : {3, 0, 2, 1}) {
      ScheduledRequest job =
          job_of(model, request_of(*model, 2, 5, 4), told[static_cast<size_t>(priority)], {},
                 [&order, priority] { order.push_back(priority); });
      job.priority = priority;
      loop.submit(std::move(job));
    }
  });
  loop.submit(std::move(first));
  blocker.ended.get_future().get();
  for (Told& one : told) one.ended.get_future().get();
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(metrics.value("preemptions_total"), 0);
}

// other work needs no place, is done in pieces, and ends when nobody waits for it
TEST(Scheduler, OtherWorkIsDoneBesideTexts) {
  Metrics metrics;
  Scheduler loop({.parallel = 1}, metrics);
  const ServedModelPtr model = served("attention");
  Told text;
  std::promise<FinishStatus> left, done;
  CancelToken disconnected;
  int pieces = 0, endless = 0;
  loop.submit(job_of(model, request_of(*model, 3, 4, 40), text, [&] {
    if (text.ids.size() == 5) {
      ScheduledRequest work;
      work.model = model;
      work.work = [&] { return ++pieces == 3; };
      work.on_end = [&](std::vector<infer::Generation>, FinishStatus ending, std::exception_ptr) {
        EXPECT_LT(text.ids.size(), 40u);
        done.set_value(ending);
      };
      loop.submit(std::move(work));
      ScheduledRequest other;
      other.model = model;
      other.disconnected = &disconnected;
      other.work = [&] {
        ++endless;
        return false;
      };
      other.on_end = [&](std::vector<infer::Generation>, FinishStatus ending, std::exception_ptr) {
        left.set_value(ending);
      };
      loop.submit(std::move(other));
    }
    if (text.ids.size() == 20) disconnected.request();
  }));
  EXPECT_EQ(done.get_future().get(), FinishStatus::done);
  EXPECT_EQ(left.get_future().get(), FinishStatus::disconnected);
  text.ended.get_future().get();
  EXPECT_EQ(pieces, 3);
  EXPECT_GT(endless, 3);
}

}  // namespace
}  // namespace tessera::serve::scheduler_test
