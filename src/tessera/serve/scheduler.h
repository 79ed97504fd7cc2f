// Scheduler of the server: one thread that takes requests, steps the engines of their models and
// reports results. Scheduling never changes the output of a request.
//
// Order (fair scheduling): lower priority values first (waiting lowers a request's value by one
// every ten seconds), then the client that was served least (a prompt token counts 1, a generated
// token 2; virtual token counter, Sheng et al. 2024, arXiv:2401.00588), then by arrival. A sequence
// is admitted if its prompt and some tokens fit in the state memory. When sequences outgrow that
// memory, the newest is preempted: its state is freed, and later its tokens are prefilled again,
// with the same output. A sequence is preempted at most twice. A sequence whose client reads slowly
// is paused: it has no slot and is preempted first.
//
// Out of memory fails one request only: exceptions of callbacks end their request, sequences of an
// engine that has thrown continue in a new engine, and other failures are retried.
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
#include "tessera/serve/scheduling_policy.h"

namespace tessera::serve {

enum class FinishStatus { done, disconnected, deadline, shutdown, failed };

/// A request in the scheduler's queue. Callbacks are called on the scheduler's thread.
struct ScheduledRequest {
  using Clock = std::chrono::steady_clock;

  ServedModelPtr model;
  /// Independent sequences; `choices` of them share each prompt, one prompt after the other.
  std::vector<infer::Request> requests;
  int64_t choices = 1;
  int64_t prompt_tokens = 0;                  // of all prompts
  int64_t row_bytes = 0;                      // max. state of one sequence, bytes
  std::string id, client;                     // as shown; identity for fair scheduling
  int64_t priority = 0;                       // lower values first
  std::shared_ptr<void> alive;                // keeps `disconnected` alive
  const CancelToken* disconnected = nullptr;  // set when the client has disconnected
  Clock::time_point arrived = Clock::now(), deadline = Clock::time_point::max();
  /// When it is admitted.
  std::function<void()> on_begin;
  /// After every step in which it took part, and while it is paused.
  std::function<void()> on_step;
  /// True if the client reads slowly: its sequences are paused and leave their slots. Needs
  /// on_step.
  std::function<bool()> client_is_slow;
  /// Once, as the last call. With `done` all generations are complete; `error` is that of `failed`.
  std::function<void(
      std::vector<infer::Generation> made, FinishStatus ending, std::exception_ptr error)>
      on_end;
  /// Replaces on_end if that has thrown for want of memory; throws nothing.
  std::function<void()> lost;
  /// Replaces `requests`: computes one piece of other work; returns true after the last.
  std::function<bool()> work;
  bool part = false;  // another entry of the same HTTP request sends the response and is measured
};

struct SchedulerOptions {
  int64_t parallel = 16;    // max. sequences at a time
  int64_t state_bytes = 0;  // max. memory of states; 0 = no limit
  int64_t step_ms =
      100;  // prefill time per step while other requests decode, ms; four times that otherwise
  bool priorities = false;  // preempt sequences for requests with lower priority values
  Limits limits = {};
};

/// Owns the queue, the running requests and the engines of all models. Public functions are
/// thread-safe; everything else, callbacks included, runs on its own thread. Every accepted request
/// ends with exactly one on_end (or lost), also after exceptions. Only submit() throws, for
/// requests that it does not accept.
class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, Metrics& metrics);
  ~Scheduler();

  /// Throws ApiError 429 if the queue is full, 503 during shutdown, 400 if the request can never
  /// fit.
  void submit(ScheduledRequest job);
  /// Number of requests in the queue; running.
  int64_t waiting() const;
  int64_t running() const;
  /// The running requests as of about half a second ago, without their text: id, model, client,
  /// priority, prompt and generated tokens, running and waiting sequences.
  Json view() const;
  /// Ends all requests with FinishStatus::shutdown and accepts no more.
  void abort();
  /// Returns freed memory to the system between two steps: cached blocks and free heap pages, and,
  /// if nothing runs, what engines hold of earlier requests.
  void give_back_memory();
  /// abort(), then joins the thread; may be called repeatedly.
  void stop();
  /// Estimated seconds until queued requests begin, for Retry-After.
  int retry_after() const;

 private:
  struct Running;
  struct Row;
  struct Place;  // a sequence of a running request
  void run();
  bool turn();
  void conclude(ScheduledRequest& job,
                std::vector<infer::Generation> made,
                FinishStatus ending,
                const std::exception_ptr& error) noexcept;
  void report_step(Running& running) noexcept;
  void rebuild_engine(const ServedModelPtr& model, const std::exception_ptr& error);
  void admit();
  void count_clients();
  std::deque<ScheduledRequest>::iterator next_waiting(bool work);
  Running& begin(std::deque<ScheduledRequest>::iterator at);
  static Turn turn_of(const ScheduledRequest& job);
  int64_t bytes_of(const ScheduledRequest& job, size_t row, int64_t tokens) const;
  bool make_room(const ScheduledRequest& job, int64_t bytes);
  bool give_next(Running& running);
  void give(Running& running, size_t index);
  std::vector<Preemptible> preemptible(std::vector<Place>& places);
  bool preempt_one(std::optional<int64_t> above, const char* kind);
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
  std::atomic<double> tokens_per_second_{0};  // prefill speed

  // used by the scheduler's thread only
  std::list<Running> running_;
  StateBudget budget_;
  TurnOrder order_;
  /// Preempted sequences of each model, until its engine has removed them.
  std::map<ServedModelPtr, std::vector<infer::Engine::Id>> dropped_;
  struct ModelInUse {
    std::weak_ptr<ServedModel> model;
    infer::PrefixCacheStats counted = {};
  };
  std::vector<ModelInUse> models_in_use_;  // models in use so far
  ScheduledRequest::Clock::time_point measured_{};
  std::thread thread_;
};

}  // namespace tessera::serve
