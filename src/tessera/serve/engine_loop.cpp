#include "tessera/serve/engine_loop.h"

#include <algorithm>
#include <set>

#include "tessera/serve/api_error.h"

namespace tessera::serve {

using Clock = Job::Clock;

struct EngineLoop::Running {
  Job job;
  struct Row {
    std::optional<infer::Engine::Id> id;  // once it is the engine's
    bool done = false;
    infer::Generation made = {};
    int64_t tokens = 0;
    Clock::time_point first = {}, last = {};
  };
  std::vector<Row> rows;
  size_t submitted = 0;
  std::optional<Ending> ending;  // decided, but the engine has not let go of it
  std::exception_ptr error = nullptr;
  bool begun = false;  // has said a token

  /// What of it the engine has is let go of.
  void leave(Ending why) {
    ending = why;
    for (Row& row : rows)
      if (row.id && !row.done) job.model->engine->cancel(*row.id);
  }
};

EngineLoop::EngineLoop(const EngineLoopOptions& options, Metrics& metrics)
    : options_(options), metrics_(metrics) {
  metrics_.set("state_limit_bytes", static_cast<double>(options_.state_bytes));
  thread_ = std::thread([this] { run(); });
}

EngineLoop::~EngineLoop() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EngineLoop::submit(Job job) {
  if (options_.state_bytes > 0 && job.row_bytes > options_.state_bytes)
    throw ApiError(400, "state_memory_exceeded",
                   "so long a text takes more memory than this server gives to states; ask for "
                   "fewer tokens");
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || aborting_)
      throw ApiError(503, "draining", "the server is about to end", "", 10);
    const int64_t waiting = static_cast<int64_t>(waiting_.size());
    const bool full =
        waiting >= options_.limits.waiting_requests ||
        (waiting > 0 && waiting_tokens_ + job.prompt_tokens > options_.limits.waiting_tokens);
    if (full) {
      metrics_.add("rejected_total", 1, "reason=\"queue_full\"");
      const double seconds =
          static_cast<double>(waiting_tokens_) / std::max(1.0, tokens_per_second_.load());
      throw ApiError(429, "queue_full", "too many requests wait already", "",
                     std::clamp(static_cast<int>(seconds), 1, 60));
    }
    waiting_tokens_ += job.prompt_tokens;
    waiting_.push_back(std::move(job));
  }
  changed_.notify_all();
}

int64_t EngineLoop::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}
int64_t EngineLoop::running() const {
  return running_count_;
}

void EngineLoop::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborting_ = true;
  }
  changed_.notify_all();
}

void EngineLoop::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (running_.empty()) {
        measure();
        changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (stopping_ && waiting_.empty()) return;
      }
    }
    expire();
    admit();
    step();
    measure();
  }
}

/// Who is gone or late leaves; those whose texts an engine has are let go of by it first.
void EngineLoop::expire() {
  const auto now = Clock::now();
  bool aborting = false;
  std::vector<std::pair<Job, Ending>> over;
  {
    const std::lock_guard lock(mutex_);
    aborting = aborting_;
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const bool gone = at->gone != nullptr && at->gone->requested();
      if (!gone && !aborting && now < at->deadline) {
        ++at;
        continue;
      }
      waiting_tokens_ -= at->prompt_tokens;
      over.emplace_back(std::move(*at), gone       ? Ending::gone
                                        : aborting ? Ending::shutdown
                                                   : Ending::deadline);
      at = waiting_.erase(at);
    }
  }
  for (auto& [job, ending] : over) job.on_end({}, ending, nullptr);
  for (Running& running : running_) {
    if (running.ending) continue;
    const Job& job = running.job;
    if (job.gone != nullptr && job.gone->requested())
      running.leave(Ending::gone);
    else if (aborting)
      running.leave(Ending::shutdown);
    else if (now >= job.deadline)
      running.leave(Ending::deadline);
  }
}

/// Gives rows to those that run already, then to those that wait, in order.
void EngineLoop::admit() {
  const auto give = [&](Running& running) {
    try {
      while (!running.ending && submit_next(running)) {
      }
    } catch (...) {
      running.error = std::current_exception();
      running.leave(Ending::failed);
    }
  };
  for (Running& running : running_) give(running);
  for (;;) {
    // one after the other
    if (!running_.empty() && !running_.back().ending &&
        running_.back().submitted < running_.back().rows.size())
      return;
    Running next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) break;
      const Job& job = waiting_.front();
      const bool fits = job.work != nullptr || (rows_ < options_.parallel &&
                                                (options_.state_bytes == 0 || bytes_ == 0 ||
                                                 bytes_ + job.row_bytes <= options_.state_bytes));
      if (!fits) break;
      waiting_tokens_ -= job.prompt_tokens;
      next.job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    metrics_.observe("queue_seconds",
                     std::chrono::duration<double>(Clock::now() - next.job.arrived).count());
    next.rows.resize(next.job.requests.size());
    running_.push_back(std::move(next));
    running_count_ = static_cast<int64_t>(running_.size());
    give(running_.back());
  }
}

/// The next of its texts goes to the engine, where there is room.
bool EngineLoop::submit_next(Running& running) {
  Job& job = running.job;
  if (running.submitted == running.rows.size()) return false;
  if (rows_ >= options_.parallel) return false;
  if (options_.state_bytes > 0 && bytes_ > 0 && bytes_ + job.row_bytes > options_.state_bytes)
    return false;
  ServedModel& model = *job.model;
  if (!model.engine)
    model.engine = std::make_unique<infer::Engine>(
        model.loaded.model,
        infer::Engine::Options{
            .tokenizer = &*model.loaded.tokenizer, .cache = model.cache.get(), .kv = model.kv});
  const size_t index = running.submitted;
  Running::Row& row = running.rows[index];
  infer::Request request = std::move(job.requests[index]);
  request.cancel = job.gone;
  // a choice begins as the first one of its prompt, while that is there
  if (const size_t first = index - index % static_cast<size_t>(job.choices); first != index)
    if (const Running::Row& leader = running.rows[first]; leader.id && !leader.done)
      request.begins_as = leader.id;
  request.on_token = [this, &running, &row, told = request.on_token](int64_t id) {
    const auto now = Clock::now();
    const auto since = [&](Clock::time_point then) {
      return std::chrono::duration<double>(now - then).count();
    };
    if (row.tokens == 0) row.first = now;
    if (!std::exchange(running.begun, true))
      metrics_.observe("time_to_first_token_seconds", since(running.job.arrived));
    if (row.tokens++ > 0) metrics_.observe("inter_token_seconds", since(row.last));
    row.last = now;
    if (told) told(id);
  };
  row.id = model.engine->submit(request);
  ++running.submitted;
  ++rows_;
  bytes_ += job.row_bytes;
  return true;
}

void EngineLoop::step() {
  // one piece of other work for each that has some
  for (auto at = running_.begin(); at != running_.end();) {
    const auto next = std::next(at);
    if (at->job.work) {
      bool last = true;
      std::exception_ptr error;
      if (!at->ending) {
        try {
          last = at->job.work();
        } catch (...) {
          error = std::current_exception();
        }
      }
      if (at->ending || error || last)
        end(at, error ? Ending::failed : at->ending.value_or(Ending::done), error);
    }
    at = next;
  }
  std::vector<ServedModelPtr> models;
  for (const Running& running : running_)
    if (!running.job.work &&
        std::find(models.begin(), models.end(), running.job.model) == models.end())
      models.push_back(running.job.model);
  for (const ServedModelPtr& model : models) step_model(model);
}

/// Tokens of prompts in the next step.
int64_t EngineLoop::budget(const ServedModelPtr& model) {
  constexpr int64_t kMost = 1024, kLeast = 16;
  const infer::EngineCounts& counts = model->engine->counts();
  if (counts.prefill_seconds > 0)
    tokens_per_second_ = static_cast<double>(counts.prefill_tokens) / counts.prefill_seconds;
  const bool decoding = std::any_of(running_.begin(), running_.end(), [&](const Running& running) {
    return running.job.model == model && running.begun;
  });
  if (!decoding) return kMost;
  const double fits = tokens_per_second_ * static_cast<double>(options_.step_ms) * 1e-3;
  return std::clamp(static_cast<int64_t>(fits), kLeast, kMost);
}

void EngineLoop::step_model(const ServedModelPtr& model) {
  const auto begin = Clock::now();
  std::exception_ptr error;
  if (model->engine) {
    try {
      model->engine->step(budget(model));
    } catch (...) {
      error = std::current_exception();
    }
    metrics_.add("steps_total");
    metrics_.observe("step_seconds", std::chrono::duration<double>(Clock::now() - begin).count());
  }
  for (auto at = running_.begin(); at != running_.end();) {
    const auto next = std::next(at);
    if (!at->job.work && at->job.model == model) {
      if (error) {
        end(at, Ending::failed, error);
      } else {
        collect(*at);
        const bool submitted = at->submitted == at->rows.size() || at->ending;
        const bool over =
            submitted && std::all_of(at->rows.begin(), at->rows.end(),
                                     [](const auto& row) { return row.done || !row.id; });
        if (over)
          end(at, at->ending.value_or(Ending::done), at->error);
        else if (at->job.on_step && !at->ending)
          at->job.on_step();
      }
    }
    at = next;
  }
  // what an engine is after a step that failed nobody knows
  if (error) model->engine.reset();
}

void EngineLoop::collect(Running& running) {
  for (Running::Row& row : running.rows) {
    if (!row.id || row.done || !running.job.model->engine->done(*row.id)) continue;
    row.made = running.job.model->engine->take(*row.id).generation;
    row.done = true;
    --rows_;
    bytes_ -= running.job.row_bytes;
  }
}

void EngineLoop::end(std::list<Running>::iterator at, Ending ending, std::exception_ptr error) {
  Running& running = *at;
  const Job& job = running.job;
  const auto since = [&](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  std::vector<infer::Generation> made;
  double tokens = 0;
  for (Running::Row& row : running.rows) {
    if (row.id && !row.done) {  // its engine goes
      --rows_;
      bytes_ -= job.row_bytes;
    }
    if (row.tokens > 1)
      metrics_.observe("time_per_output_token_seconds",
                       std::chrono::duration<double>(row.last - row.first).count() /
                           static_cast<double>(row.tokens - 1));
    tokens += static_cast<double>(row.tokens);
    metrics_.add("generated_tokens_total", static_cast<double>(row.tokens));
    metrics_.add("prompt_tokens_total", static_cast<double>(row.made.prompt_tokens));
    metrics_.add("cached_prompt_tokens_total", static_cast<double>(row.made.cached_tokens));
    if (ending == Ending::done && row.made.error) {
      ending = Ending::failed;
      error = row.made.error;
    }
    made.push_back(std::move(row.made));
  }
  if (!running.rows.empty()) {
    const char* finish = ending == Ending::gone       ? "cancelled"
                         : ending == Ending::deadline ? "deadline"
                         : ending == Ending::shutdown ? "shutdown"
                         : ending == Ending::failed   ? "error"
                                                      : nullptr;
    for (const infer::Generation& text : made)
      metrics_.add("generations_total", 1,
                   "finish=" + label(finish != nullptr ? finish : text.finish_reason));
    metrics_.observe("request_prompt_tokens", static_cast<double>(job.prompt_tokens));
    metrics_.observe("request_generated_tokens", tokens);
  }
  metrics_.observe("request_seconds", since(job.arrived));
  auto on_end = std::move(running.job.on_end);
  const auto alive = job.alive;
  running_.erase(at);
  running_count_ = static_cast<int64_t>(running_.size());
  if (on_end) on_end(std::move(made), ending, error);
}

/// About twice a second.
void EngineLoop::measure() {
  const auto now = Clock::now();
  if (now - measured_ < std::chrono::milliseconds(500) && !running_.empty()) return;
  measured_ = now;
  metrics_.set("requests_running", static_cast<double>(running_.size()));
  metrics_.set("state_reserved_bytes", static_cast<double>(bytes_));
}

int EngineLoop::retry_after() const {
  const std::lock_guard lock(mutex_);
  return std::clamp(static_cast<int>(static_cast<double>(waiting_tokens_) /
                                     std::max(1.0, tokens_per_second_.load())),
                    1, 60);
}

}  // namespace tessera::serve
