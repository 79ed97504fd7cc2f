// The one thread that computes: it takes requests as they come, steps the engines of their models,
// and tells how they ended. No text depends on what else it does.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "tessera/serve/limits.h"
#include "tessera/serve/metrics.h"
#include "tessera/serve/models.h"

namespace tessera::serve {

enum class Ending { done, gone, deadline, shutdown, failed };

/// What one client asked for. The callbacks are called on the engine's thread.
struct Job {
  using Clock = std::chrono::steady_clock;

  ServedModelPtr model;
  /// Texts, each by itself; `choices` of them go on from each prompt, one prompt after the other.
  std::vector<infer::Request> requests;
  int64_t choices = 1;
  int64_t prompt_tokens = 0;          // of all prompts
  int64_t row_bytes = 0;              // of the state that each of them may come to, at most
  std::shared_ptr<void> alive;        // what `gone` belongs to
  const CancelToken* gone = nullptr;  // nobody waits for it any more
  Clock::time_point arrived = Clock::now(), deadline = Clock::time_point::max();
  /// After every step that it took part in.
  std::function<void()> on_step;
  /// Once, as its last call. With `done` all generations are there; the error is that of `failed`.
  std::function<void(std::vector<infer::Generation> made, Ending ending, std::exception_ptr error)>
      on_end;
  /// In place of requests: one piece of other work, and whether that was the last.
  std::function<bool()> work;
};

struct EngineLoopOptions {
  int64_t parallel = 16;    // texts at a time
  int64_t state_bytes = 0;  // most memory of states; 0 = any
  int64_t step_ms = 100;    // beside texts that go on, prompts take about so long a step
  Limits limits;
};

class EngineLoop {
 public:
  EngineLoop(const EngineLoopOptions& options, Metrics& metrics);
  ~EngineLoop();

  /// Throws ApiError 429 when too much waits, 503 when it is to end, 400 where the job never fits.
  void submit(Job job);
  /// So much is waiting, running.
  int64_t waiting() const;
  int64_t running() const;
  /// Ends what there is with Ending::shutdown, and takes nothing more.
  void abort();
  /// Seconds until what waits may have begun, for who is turned away.
  int retry_after() const;

 private:
  struct Running;
  void run();
  void admit();
  bool submit_next(Running& running);
  void expire();
  void step();
  void step_model(const ServedModelPtr& model);
  void collect(Running& running);
  void end(std::list<Running>::iterator at, Ending ending, std::exception_ptr error = nullptr);
  int64_t budget(const ServedModelPtr& model);
  void measure();

  const EngineLoopOptions options_;
  Metrics& metrics_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  int64_t waiting_tokens_ = 0;
  std::atomic<int64_t> running_count_{0};
  bool stopping_ = false, aborting_ = false;
  std::atomic<double> tokens_per_second_{0};  // of prompts

  // of the thread
  std::list<Running> running_;
  int64_t rows_ = 0, bytes_ = 0;
  Job::Clock::time_point measured_{};
  std::thread thread_;
};

}  // namespace tessera::serve
