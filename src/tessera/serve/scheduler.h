// The one thread that computes: it takes requests as they come, steps the engines of their models,
// and tells how they ended. No text depends on what else it does.
//
// Whose turn it is: the lower priority goes first (what waits rises by one every ten seconds), then
// the client that was served least (a token read counts 1, one said 2; Sheng et al. 2024,
// arXiv:2401.00588), then who came first. A text is begun where its prompt and some tokens fit
// beside the others; when texts grow beyond the memory of states, the one that came last lets go of
// its state and later goes on from its tokens, which are read anew. One that did so twice keeps its
// place to the end. A text whose client does not read rests: it has no place, and gives way first.
//
// What fails for want of memory fails for one request: callbacks that throw end theirs, texts of an
// engine that has thrown go on by another one, and what belongs to nobody is tried again.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tessera/serve/limits.h"
#include "tessera/serve/metrics.h"
#include "tessera/serve/models.h"

namespace tessera::serve {

enum class FinishStatus { done, disconnected, deadline, shutdown, failed };

/// What one client asked for. The callbacks are called on the engine's thread.
struct ScheduledRequest {
  using Clock = std::chrono::steady_clock;

  ServedModelPtr model;
  /// Texts, each by itself; `choices` of them go on from each prompt, one prompt after the other.
  std::vector<infer::Request> requests;
  int64_t choices = 1;
  int64_t prompt_tokens = 0;                  // of all prompts
  int64_t row_bytes = 0;                      // of the state that each of them may come to, at most
  std::string id, client;                     // as it is shown; whose turn it counts as
  int64_t priority = 0;                       // the lower goes first
  std::shared_ptr<void> alive;                // what `gone` belongs to
  const CancelToken* disconnected = nullptr;  // nobody waits for it any more
  Clock::time_point arrived = Clock::now(), deadline = Clock::time_point::max();
  /// Once it is its turn.
  std::function<void()> on_begin;
  /// After every step that it took part in, and while it rests.
  std::function<void()> on_step;
  /// Whether its client is to read first: its texts rest until then, and leave their places to
  /// others. Of jobs with on_step.
  std::function<bool()> client_is_slow;
  /// Once, as its last call. With `done` all generations are there; the error is that of `failed`.
  std::function<void(
      std::vector<infer::Generation> made, FinishStatus ending, std::exception_ptr error)>
      on_end;
  /// In place of on_end where that has thrown, for want of memory; throws nothing.
  std::function<void()> lost;
  /// In place of requests: one piece of other work, and whether that was the last.
  std::function<bool()> work;
  bool part = false;  // another job of the same request answers it, and is what is measured
};

struct SchedulerOptions {
  int64_t parallel = 16;    // texts at a time
  int64_t state_bytes = 0;  // most memory of states; 0 = any
  int64_t step_ms = 100;  // prompts take about so long a step beside texts that go on, else 4 times
  bool priorities = false;  // texts let go of their places for those of lower priority numbers
  Limits limits = {};
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, Metrics& metrics);
  ~Scheduler();

  /// Throws ApiError 429 when too much waits, 503 when it is to end, 400 where the job never fits.
  void submit(ScheduledRequest job);
  /// So much is waiting, running.
  int64_t waiting() const;
  int64_t running() const;
  /// Those that run, as of about half a second ago, without a word of what they say: id, model,
  /// client, priority, tokens read and said, texts that run and that wait for their place.
  Json view() const;
  /// Ends what there is with Ending::shutdown, and takes nothing more.
  void abort();
  /// Freed memory goes back to the system, between two steps: kept blocks and free pages of heaps,
  /// and where nothing runs what engines hold of earlier requests.
  void give_back_memory();
  /// abort(), and the end of the thread; more than once does nothing more.
  void stop();
  /// Seconds until what waits may have begun, for who is turned away.
  int retry_after() const;

 private:
  struct Running;
  struct Row;
  struct Place;  // a row of a running job
  void run();
  bool turn();
  void conclude(ScheduledRequest& job,
                std::vector<infer::Generation> made,
                FinishStatus ending,
                const std::exception_ptr& error) noexcept;
  void tell_step(Running& running) noexcept;
  void rebuild_engine(const ServedModelPtr& model, const std::exception_ptr& error);
  void admit();
  void count_clients();
  std::deque<ScheduledRequest>::iterator next_waiting(bool work);
  Running& begin(std::deque<ScheduledRequest>::iterator at);
  int64_t rank(const ScheduledRequest& job) const;
  bool goes_before(const ScheduledRequest& a, const ScheduledRequest& b) const;
  int64_t bytes_of(const ScheduledRequest& job, size_t row, int64_t tokens) const;
  bool has_room(int64_t bytes) const;
  bool make_room(const ScheduledRequest& job, int64_t bytes);
  bool give_next(Running& running);
  void give(Running& running, size_t index);
  Place preemption_victim(int64_t above);
  Place resting();
  void vacate(Row& row);
  void rest();
  bool is_active(const Running& running) const;
  void wait_for_readers(int64_t arrivals);
  void preempt(const Place& place, const char* kind);
  void grow();
  void expire();
  void step();
  void step_work();
  void step_model(const ServedModelPtr& model);
  void collect(Running& running);
  void end(std::list<Running>::iterator at, FinishStatus ending, std::exception_ptr error) noexcept;
  int64_t budget(const ServedModelPtr& model);
  void trim();
  void measure();
  void measure_models();

  const SchedulerOptions options_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ScheduledRequest> waiting_;  // by arrival
  int64_t waiting_tokens_ = 0, arrivals_ = 0;
  Json view_ = Json::array();
  std::atomic<int64_t> running_count_{0};
  bool stopping_ = false, aborting_ = false, trims_ = false;
  std::atomic<double> tokens_per_second_{0};  // of prompts

  // of the thread
  std::list<Running> running_;
  int64_t rows_ = 0, bytes_ = 0;
  std::map<std::string, double> served_;  // tokens, by client
  std::set<std::string> active_;          // clients that run or wait
  /// Of each model, the texts whose places were taken, until its engine has let go of them.
  std::map<ServedModelPtr, std::vector<infer::Engine::Id>> dropped_;
  struct Known {
    std::weak_ptr<ServedModel> model;
    infer::PrefixCacheStats counted = {};
  };
  std::vector<Known> known_;  // models that were asked for
  ScheduledRequest::Clock::time_point measured_{};
  std::thread thread_;
};

}  // namespace tessera::serve
