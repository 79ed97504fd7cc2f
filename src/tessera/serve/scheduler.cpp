#include "tessera/serve/scheduler.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include <fmt/format.h>

#include "tessera/base/heap.h"
#include "tessera/base/error.h"
#include "tessera/ops/block_cache.h"
#include "tessera/serve/api_error.h"

namespace tessera::serve {

using Clock = ScheduledRequest::Clock;

namespace {

constexpr int64_t kRoom = 64;  // tokens of state memory that a sequence reserves at a time
constexpr int kYields = 2;     // max. preemptions of a sequence

}  // namespace

struct Scheduler::Row {
  std::optional<infer::Engine::Id> id;  // while the engine has it
  bool done = false;
  bool paused = false;                   // in the engine, without a slot
  int64_t bytes = 0, room = 0;           // reserved state memory, and the tokens that it is for
  std::vector<int64_t> generated = {};   // generated tokens
  int yields = 0;                        // number of preemptions
  bool failed = false;                   // an engine with this row has thrown
  std::shared_ptr<bool> passes_on = {};  // whether callbacks are passed on
  infer::Generation made = {};
  int64_t tokens = 0;
  Clock::time_point first = {}, last = {};
};

struct Scheduler::Running {
  ScheduledRequest job;
  std::vector<Row> rows;
  std::optional<FinishStatus> ending;  // decided; the engine still has rows
  std::exception_ptr error = nullptr;
  bool begun = false;           // has generated a token
  bool client_is_slow = false;  // the client reads slowly

  /// The first row that is not in the engine yet.
  std::optional<size_t> next() const {
    if (ending || job.work || client_is_slow) return std::nullopt;
    for (size_t i = 0; i < rows.size(); ++i)
      if (!rows[i].id && !rows[i].done) return i;
    return std::nullopt;
  }
  /// True if a row can be preempted and resumed with the same output.
  bool can_yield(size_t row) const {
    const infer::Request& request = job.requests[row];
    // the state of Mirostat is not saved
    return !request.beams && request.targets.ids.empty() && request.decoding.sampling.mirostat == 0;
  }
  /// True if the row may be preempted.
  bool may_yield(size_t row) const { return rows[row].yields < kYields && can_yield(row); }
  /// Ends the request; the engine's rows are cancelled.
  void leave(FinishStatus why) {
    ending = why;
    for (Row& row : rows)
      if (row.id && !row.done) job.model->engine->cancel(*row.id);
  }
};

struct Scheduler::Place {
  Running* running = nullptr;
  size_t row = 0;
};

Scheduler::Scheduler(const SchedulerOptions& options, Metrics& metrics)
    : options_(options),
      metrics_(metrics),
      budget_(options.parallel, options.state_bytes),
      order_(options.priorities) {
  metrics_.set("state_limit_bytes", static_cast<double>(options_.state_bytes));
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() {
  stop();
}

void Scheduler::stop() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::submit(ScheduledRequest job) {
  if (options_.state_bytes > 0 && job.row_bytes > options_.state_bytes)
    throw ApiError(400, "state_memory_exceeded",
                   fmt::format("request needs {} MiB of KV cache, --state-memory is {} MiB; "
                               "request fewer tokens",
                               (job.row_bytes + (1 << 20) - 1) >> 20, options_.state_bytes >> 20));
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || aborting_) throw ApiError(503, "draining", "server is shutting down", "", 10);
    const int64_t waiting = static_cast<int64_t>(waiting_.size());
    const bool full =
        waiting >= options_.limits.waiting_requests ||
        (waiting > 0 && waiting_tokens_ + job.prompt_tokens > options_.limits.waiting_tokens);
    if (full) {
      metrics_.add("rejected_total", 1, {{"reason", "queue_full"}});
      const double seconds =
          static_cast<double>(waiting_tokens_) / std::max(1.0, tokens_per_second_.load());
      const int wait = std::clamp(static_cast<int>(seconds), 1, 60);
      throw ApiError(429, "queue_full",
                     fmt::format("request queue is full ({}); retry after {} s", waiting, wait), "",
                     wait);
    }
    const int64_t tokens = job.prompt_tokens;
    waiting_.push_back(std::move(job));
    waiting_tokens_ += tokens;
    ++arrivals_;
  }
  changed_.notify_all();
}

int64_t Scheduler::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}
int64_t Scheduler::running() const {
  return running_count_;
}

void Scheduler::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborting_ = true;
  }
  changed_.notify_all();
}

void Scheduler::give_back_memory() {
  {
    const std::lock_guard lock(mutex_);
    trims_ = true;
  }
  changed_.notify_all();
}

/// Carries out give_back_memory().
void Scheduler::trim() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(trims_, false)) return;
  }
  if (running_.empty() && dropped_.empty())
    for (const ModelInUse& known : models_in_use_)
      if (const ServedModelPtr model = known.model.lock()) model->engine.reset();
  ops::release_block_cache();
  give_back_freed_memory();
  metrics_.add("memory_trims_total");
}

void Scheduler::run() {
  for (;;) try {
      if (!turn()) return;
    } catch (...) {
      // the next turn continues where this one stopped
      complain(std::current_exception());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

/// One round of the thread; false at the end.
bool Scheduler::turn() {
  if (running_.empty()) {
    measure();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || trims_ || !waiting_.empty(); });
    if (stopping_ && waiting_.empty()) return false;
  }
  trim();
  const int64_t arrivals = [&] {
    const std::lock_guard lock(mutex_);
    return arrivals_;
  }();
  expire();
  rest();
  admit();
  if (std::any_of(running_.begin(), running_.end(),
                  [&](const Running& running) { return is_active(running); }))
    step();
  else if (!running_.empty())
    wait_for_readers(arrivals);
  measure();
  return true;
}

/// Reports the end of a request. If that throws, it reports the error; if that throws too, the
/// client is given up.
void Scheduler::conclude(ScheduledRequest& job,
                         std::vector<infer::Generation> made,
                         FinishStatus ending,
                         const std::exception_ptr& error) noexcept {
  try {
    job.on_end(std::move(made), ending, error);
  } catch (...) {
    try {
      job.on_end({}, FinishStatus::failed, std::current_exception());
    } catch (...) {
      if (job.lost) job.lost();
    }
  }
}

void Scheduler::report_step(Running& running) noexcept {
  try {
    running.job.on_step();
  } catch (...) {
    running.error = std::current_exception();
    running.leave(FinishStatus::failed);
  }
}

/// Waits until a client reads, disconnects or sends a request.
void Scheduler::wait_for_readers(int64_t arrivals) {
  constexpr auto kLook = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kLook, [&] { return stopping_ || aborting_ || arrivals_ != arrivals; });
}

/// True if a step would do work for this request.
bool Scheduler::is_active(const Running& running) const {
  if (running.job.work || running.ending || dropped_.contains(running.job.model)) return true;
  return std::any_of(running.rows.begin(), running.rows.end(),
                     [](const Row& row) { return row.id && !row.paused; });
}

/// Pauses sequences of slow clients, and resumes them when the client has caught up and a slot is
/// free.
void Scheduler::rest() {
  for (Running& running : running_) {
    if (!running.job.client_is_slow || running.ending) continue;
    if (running.client_is_slow) report_step(running);
    if (running.ending) continue;
    running.client_is_slow = running.job.client_is_slow();
    for (Row& row : running.rows) {
      if (!row.id || row.done || row.paused == running.client_is_slow) continue;
      if (!running.client_is_slow && !budget_.has_slot()) continue;
      row.paused = running.client_is_slow;
      row.paused ? budget_.pause() : budget_.resume();
      running.job.model->engine->set_paused(*row.id, row.paused);
    }
  }
}

/// Ends requests that are disconnected, past their deadline or aborted. Running ones are cancelled
/// in the engine first.
void Scheduler::expire() {
  const auto now = Clock::now();
  bool aborting = false;
  for (;;) {
    ScheduledRequest job;
    FinishStatus ending = FinishStatus::disconnected;
    {
      const std::lock_guard lock(mutex_);
      aborting = aborting_;
      const auto over = [&](const ScheduledRequest& one) {
        return (one.disconnected != nullptr && one.disconnected->requested()) || aborting ||
               now >= one.deadline;
      };
      const auto at = std::find_if(waiting_.begin(), waiting_.end(), over);
      if (at == waiting_.end()) break;
      if (at->disconnected == nullptr || !at->disconnected->requested())
        ending = aborting ? FinishStatus::shutdown : FinishStatus::deadline;
      waiting_tokens_ -= at->prompt_tokens;
      job = std::move(*at);
      waiting_.erase(at);
    }
    conclude(job, {}, ending, nullptr);
  }
  for (Running& running : running_) {
    if (running.ending) continue;
    const ScheduledRequest& job = running.job;
    if (job.disconnected != nullptr && job.disconnected->requested())
      running.leave(FinishStatus::disconnected);
    else if (aborting)
      running.leave(FinishStatus::shutdown);
    else if (now >= job.deadline)
      running.leave(FinishStatus::deadline);
  }
}

/// What the order of a request depends on.
Turn Scheduler::turn_of(const ScheduledRequest& job) {
  return {job.priority, job.client, job.arrived};
}

void Scheduler::count_clients() {
  std::set<std::string> here;
  for (const Running& running : running_) here.insert(running.job.client);
  for (const ScheduledRequest& job : waiting_) here.insert(job.client);
  order_.set_active(std::move(here));
}

/// The next queued request in scheduling order, among generation requests or among other work.
std::deque<ScheduledRequest>::iterator Scheduler::next_waiting(bool work) {
  auto found = waiting_.end();
  const auto now = Clock::now();
  for (auto at = waiting_.begin(); at != waiting_.end(); ++at)
    if (!at->work != work &&
        (found == waiting_.end() || order_.before(turn_of(*at), turn_of(*found), now)))
      found = at;
  return found;
}

Scheduler::Running& Scheduler::begin(std::deque<ScheduledRequest>::iterator at) {
  std::list<Running> one(1);
  Running& running = one.front();
  running.rows.resize(at->requests.size());
  waiting_tokens_ -= at->prompt_tokens;
  running.job = std::move(*at);
  waiting_.erase(at);
  running_.splice(running_.end(), one);
  running_count_ = static_cast<int64_t>(running_.size());
  metrics_.observe("queue_seconds",
                   std::chrono::duration<double>(Clock::now() - running.job.arrived).count());
  try {
    if (running.job.on_begin) running.job.on_begin();
  } catch (...) {
    running.error = std::current_exception();
    running.ending = FinishStatus::failed;
  }
  return running;
}

/// Bytes of the state of a row with `tokens` tokens, at most job.row_bytes.
int64_t Scheduler::bytes_of(const ScheduledRequest& job, size_t row, int64_t tokens) const {
  const infer::Request& request = job.requests[row];
  return std::min(job.row_bytes,
                  job.model->state_bytes(tokens, infer::size_of(request.prompt.source)));
}

/// Frees the row's slot and reserved memory.
void Scheduler::vacate(Row& row) {
  budget_.remove(std::exchange(row.bytes, 0), std::exchange(row.paused, false));
}

/// What may give way: `places` are theirs.
std::vector<Preemptible> Scheduler::preemptible(std::vector<Place>& places) {
  std::vector<Preemptible> all;
  for (Running& running : running_) {
    if (running.job.work || running.ending) continue;
    for (size_t i = 0; i < running.rows.size(); ++i) {
      const Row& row = running.rows[i];
      if (!row.id || row.done || !running.can_yield(i)) continue;
      all.push_back({running.job.priority, running.job.arrived, row.bytes, row.paused,
                     !running.may_yield(i)});
      places.push_back({&running, i});
    }
  }
  return all;
}

/// Frees the state of a sequence; it is prefilled again later from its tokens.
void Scheduler::preempt(const Place& place, const char* kind) {
  Row& row = place.running->rows[place.row];
  const ServedModelPtr& model = place.running->job.model;
  dropped_[model].push_back(*row.id);
  model->engine->cancel(*row.id);
  *row.passes_on = false;
  row.id.reset();
  vacate(row);
  ++row.yields;
  metrics_.add("preemptions_total", 1, {{"kind", kind}});
}

/// Preempts the newest paused sequence, or else the one that preemption_victim() names; false where
/// there is neither.
bool Scheduler::preempt_one(std::optional<int64_t> above, const char* kind) {
  std::vector<Place> places;
  const std::vector<Preemptible> all = preemptible(places);
  if (const auto paused = newest_paused(all)) {
    preempt(places[*paused], "unread");
    return true;
  }
  const auto victim = above ? preemption_victim(all, *above) : std::nullopt;
  if (victim) preempt(places[*victim], kind);
  return victim.has_value();
}

/// Makes room for a sequence: preempts paused sequences, then, if that suffices, those with a
/// higher priority value.
bool Scheduler::make_room(const ScheduledRequest& job, int64_t bytes) {
  while (!budget_.fits(bytes) && budget_.has_slot())
    if (!preempt_one(std::nullopt, "")) break;
  if (budget_.fits(bytes)) return true;
  if (!options_.priorities) return false;
  std::vector<Place> places;
  if (!preemption_suffices(preemptible(places), job.priority, budget_, bytes)) return false;
  while (!budget_.fits(bytes)) {
    places.clear();
    const auto victim = preemption_victim(preemptible(places), job.priority);
    if (!victim) return false;
    preempt(places[*victim], "priority");
  }
  return true;
}

/// Admits sequences in scheduling order; further sequences of running requests come before new
/// requests of equal rank.
void Scheduler::admit() {
  {
    // other work needs no state memory
    const std::lock_guard lock(mutex_);
    count_clients();
    auto works = std::count_if(running_.begin(), running_.end(),
                               [](const Running& running) { return !!running.job.work; });
    for (auto at = next_waiting(true); at != waiting_.end() && works < options_.parallel;
         at = next_waiting(true), ++works) {
      order_.charge(at->client, static_cast<double>(at->prompt_tokens));
      begin(at);
    }
  }
  for (;;) {
    const auto now = Clock::now();
    const auto rank = [&](const ScheduledRequest& job) { return order_.rank(turn_of(job), now); };
    Running* next = nullptr;
    for (Running& running : running_)
      if (running.next() && (next == nullptr || std::tuple(rank(running.job), running.job.arrived) <
                                                    std::tuple(rank(next->job), next->job.arrived)))
        next = &running;
    {
      const std::lock_guard lock(mutex_);
      const auto at = next_waiting(false);
      if (at != waiting_.end() && (next == nullptr || rank(*at) < rank(next->job))) {
        // not admitted before there is room for its first row
        const int64_t first =
            bytes_of(*at, 0, infer::size_of(at->requests[0].prompt.tokens) + kRoom);
        if (!make_room(*at, first)) return;
        next = &begin(at);
      }
    }
    if (next == nullptr || !give_next(*next)) return;
  }
}

/// Submits the request's next sequence to the engine if there is room; returns false otherwise.
bool Scheduler::give_next(Running& running) {
  const size_t index = *running.next();
  Row& row = running.rows[index];
  const infer::Request& request = running.job.requests[index];
  row.room = infer::size_of(request.prompt.tokens) + infer::size_of(row.generated) + kRoom;
  const int64_t bytes =
      running.may_yield(index) ? bytes_of(running.job, index, row.room) : running.job.row_bytes;
  if (!make_room(running.job, bytes)) return false;
  row.bytes = bytes;
  try {
    give(running, index);
    return true;
  } catch (const Error&) {
    // refused, for example a prompt that is too long
    running.error = std::current_exception();
  } catch (...) {
    running.error = std::current_exception();
    rebuild_engine(running.job.model, running.error);
  }
  running.leave(FinishStatus::failed);
  return true;
}

void Scheduler::give(Running& running, size_t index) {
  ScheduledRequest& job = running.job;
  ServedModel& model = *job.model;
  if (!model.engine) {
    model.engine = std::make_unique<infer::Engine>(
        model.loaded.model, infer::Engine::Options{.tokenizer = &*model.loaded.tokenizer,
                                                   .speculation = model.speculation,
                                                   .cache = model.cache.get(),
                                                   .kv = model.kv});
    if (std::none_of(models_in_use_.begin(), models_in_use_.end(),
                     [&](const ModelInUse& known) { return known.model.lock() == job.model; }))
      models_in_use_.push_back({job.model});
  }
  Row& row = running.rows[index];
  infer::Request request = job.requests[index];
  request.cancel = job.disconnected;
  const int64_t read =
      infer::size_of(request.prompt.tokens) + infer::size_of(request.prompt.source);
  if (row.yields > 0) {
    metrics_.add("recomputed_tokens_total",
                 static_cast<double>(read + infer::size_of(row.generated)));
    request.generated = row.generated;
    if (row.tokens > 0) request.generated_since = row.first;
  }
  // shares the prefill with the first choice of its prompt, while that is running
  const size_t first = index - index % static_cast<size_t>(job.choices);
  if (first == index && row.yields == 0) order_.charge(job.client, static_cast<double>(read));
  if (first != index && row.yields == 0)
    if (const Row& leader = running.rows[first]; leader.id && !leader.done && leader.yields == 0)
      request.shares_prefix_with = leader.id;
  const auto passes_on = std::make_shared<bool>(true);
  request.on_token = [this, &running, &row, passes_on, callback = request.on_token](int64_t id) {
    if (!*passes_on) return;
    const auto now = Clock::now();
    const auto since = [&](Clock::time_point then) {
      return std::chrono::duration<double>(now - then).count();
    };
    if (row.tokens == 0) row.first = now;
    if (!std::exchange(running.begun, true))
      metrics_.observe("time_to_first_token_seconds", since(running.job.arrived));
    if (row.tokens++ > 0) metrics_.observe("inter_token_seconds", since(row.last));
    row.last = now;
    row.generated.push_back(id);
    order_.charge(running.job.client, 2);
    if (callback) callback(id);
  };
  if (request.on_text)
    request.on_text = [passes_on, callback = request.on_text](std::string_view text) {
      if (*passes_on) callback(text);
    };
  row.id = model.engine->submit(request);
  row.passes_on = passes_on;
  budget_.add(row.bytes);
}

/// Reserves more memory for sequences that have used theirs up, if necessary by preempting the
/// newest ones.
void Scheduler::grow() {
  if (options_.state_bytes == 0) return;
  for (Running& running : running_)
    for (size_t i = 0; i < running.rows.size() && !running.ending; ++i) {
      Row& row = running.rows[i];
      if (!row.id || row.done || row.paused || !running.may_yield(i)) continue;
      const int64_t held =
          infer::size_of(running.job.requests[i].prompt.tokens) + infer::size_of(row.generated);
      if (held < row.room) continue;
      const int64_t bytes = bytes_of(running.job, i, held + kRoom);
      while (row.id && !budget_.may_grow(row.bytes, bytes))
        if (!preempt_one(std::numeric_limits<int64_t>::min(), "memory")) break;
      if (!row.id) continue;
      row.room = held + kRoom;
      budget_.resize(row.bytes, bytes);
      row.bytes = bytes;
    }
}

void Scheduler::step() {
  step_work();
  grow();
  std::vector<ServedModelPtr> models;
  const auto add = [&](const ServedModelPtr& model) {
    if (std::find(models.begin(), models.end(), model) == models.end()) models.push_back(model);
  };
  for (const Running& running : running_)
    if (!running.job.work && is_active(running)) add(running.job.model);
  for (const auto& [model, ids] : dropped_) add(model);
  for (const ServedModelPtr& model : models) step_model(model);
}

/// Runs pieces of other work round-robin, for about the time of a step.
void Scheduler::step_work() {
  const auto until = Clock::now() + std::chrono::milliseconds(options_.step_ms);
  std::vector<std::list<Running>::iterator> works;
  for (auto at = running_.begin(); at != running_.end(); ++at)
    if (at->job.work) works.push_back(at);
  bool first = true;
  for (const auto at : works) {
    if (at->ending) {
      end(at, *at->ending, nullptr);
      continue;
    }
    if (!std::exchange(first, false) && Clock::now() >= until) continue;
    const auto piece = Clock::now();
    if (piece >= at->job.deadline) {
      end(at, FinishStatus::deadline, nullptr);
      continue;
    }
    bool last = true;
    std::exception_ptr error;
    try {
      last = at->job.work();
    } catch (...) {
      error = std::current_exception();
    }
    metrics_.add("steps_total", 1, {{"kind", "work"}});
    metrics_.observe("step_seconds", std::chrono::duration<double>(Clock::now() - piece).count());
    if (error || last)
      end(at, error ? FinishStatus::failed : FinishStatus::done, error);
    else
      running_.splice(running_.end(), running_, at);  // round-robin
  }
}

/// Token budget of the next step, from the measured prefill speed.
int64_t Scheduler::budget(const ServedModelPtr& model) {
  constexpr int64_t kMost = 1024, kLeast = 16, kLeastAlone = 256;
  constexpr double kAlone = 4;
  const infer::EngineCounts& counts = model->engine->counts();
  if (counts.prefill_seconds > 0)
    tokens_per_second_ = static_cast<double>(counts.prefill_tokens) / counts.prefill_seconds;
  const bool decoding = std::any_of(running_.begin(), running_.end(), [&](const Running& running) {
    return running.job.model == model && running.begun && !running.client_is_slow;
  });
  // without a decoding stream a step may be longer, but short enough for new requests
  const double ms = static_cast<double>(options_.step_ms) * (decoding ? 1 : kAlone);
  return std::clamp(static_cast<int64_t>(tokens_per_second_ * ms * 1e-3),
                    decoding ? kLeast : kLeastAlone, kMost);
}

void Scheduler::step_model(const ServedModelPtr& model) {
  const auto begin = Clock::now();
  std::exception_ptr error;
  if (model->engine) {
    const infer::EngineCounts& counts = model->engine->counts();
    const int64_t drafted_before = counts.drafted_tokens, accepted = counts.accepted_tokens;
    const bool recorded = counts.recording_failure.empty();
    try {
      model->engine->step(budget(model));
    } catch (...) {
      error = std::current_exception();
    }
    if (recorded && !counts.recording_failure.empty())
      fmt::print(stderr, "tessera: {}\n", infer::recording_note(counts.recording_failure));
    if (counts.drafted_tokens > drafted_before) {
      metrics_.add("draft_tokens_total",
                   static_cast<double>(counts.drafted_tokens - drafted_before));
      metrics_.add("draft_accepted_tokens_total",
                   static_cast<double>(counts.accepted_tokens - accepted));
    }
    metrics_.add("steps_total", 1, {{"kind", "text"}});
    metrics_.observe("step_seconds", std::chrono::duration<double>(Clock::now() - begin).count());
  }
  if (error) rebuild_engine(model, error);
  for (auto at = running_.begin(); at != running_.end();) {
    const auto next = std::next(at);
    if (!at->job.work && at->job.model == model) {
      collect(*at);
      const bool over = std::all_of(at->rows.begin(), at->rows.end(), [&](const auto& row) {
        return row.done || (at->ending && !row.id);
      });
      if (over)
        end(at, at->ending.value_or(FinishStatus::done), at->error);
      else if (at->job.on_step && !at->ending)
        report_step(*at);
    }
    at = next;
  }
  // preempted sequences are out of the engine now
  if (const auto dropped = dropped_.find(model); dropped != dropped_.end()) {
    if (model->engine)
      for (const infer::Engine::Id id : dropped->second)
        if (model->engine->done(id)) model->engine->take(id);
    dropped_.erase(dropped);
  }
}

/// After a failed step the engine's state is undefined and the cause unknown: its sequences
/// continue in a new engine. Those that cannot be resumed fail, and so do those that were in a
/// failed engine before.
void Scheduler::rebuild_engine(const ServedModelPtr& model, const std::exception_ptr& error) {
  model->engine.reset();
  dropped_.erase(model);
  for (Running& running : running_) {
    if (running.job.work || running.job.model != model) continue;
    for (size_t i = 0; i < running.rows.size(); ++i) {
      Row& row = running.rows[i];
      if (!row.id || row.done) continue;
      *row.passes_on = false;
      row.id.reset();
      vacate(row);
      ++row.yields;
      if ((running.can_yield(i) && !std::exchange(row.failed, true)) || running.ending) continue;
      running.ending = FinishStatus::failed;
      running.error = error;
    }
  }
}

void Scheduler::collect(Running& running) {
  for (Row& row : running.rows) {
    if (!row.id || row.done || !running.job.model->engine->done(*row.id)) continue;
    row.made = running.job.model->engine->take(*row.id).generation;
    row.done = true;
    vacate(row);
  }
}

void Scheduler::end(std::list<Running>::iterator at,
                    FinishStatus ending,
                    std::exception_ptr error) noexcept {
  Running& running = *at;
  const ScheduledRequest& job = running.job;
  const auto since = [&](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  std::vector<infer::Generation> made;
  try {
    made.reserve(running.rows.size());
  } catch (...) {
    ending = FinishStatus::failed;
    error = std::current_exception();
  }
  double tokens = 0;
  for (Row& row : running.rows) {
    if (row.id && !row.done) vacate(row);  // cancelled in its engine
    if (row.tokens > 1)
      metrics_.observe("time_per_output_token_seconds",
                       std::chrono::duration<double>(row.last - row.first).count() /
                           static_cast<double>(row.tokens - 1));
    tokens += static_cast<double>(row.tokens);
    metrics_.add("generated_tokens_total", static_cast<double>(row.tokens));
    metrics_.add("prompt_tokens_total", static_cast<double>(row.made.prompt_tokens));
    metrics_.add("cached_prompt_tokens_total", static_cast<double>(row.made.cached_tokens));
    if (ending == FinishStatus::done && row.made.error) {
      ending = FinishStatus::failed;
      error = row.made.error;
    }
    if (made.size() < made.capacity()) made.push_back(std::move(row.made));
  }
  if (!running.rows.empty()) {
    const char* finish = ending == FinishStatus::disconnected ? "cancelled"
                         : ending == FinishStatus::deadline   ? "deadline"
                         : ending == FinishStatus::shutdown   ? "shutdown"
                         : ending == FinishStatus::failed     ? "error"
                                                              : nullptr;
    for (const infer::Generation& text : made)
      metrics_.add("generations_total", 1,
                   {{"finish", finish != nullptr ? finish : text.finish_reason}});
    metrics_.observe("request_prompt_tokens", static_cast<double>(job.prompt_tokens));
    metrics_.observe("request_generated_tokens", tokens);
  }
  if (!job.part) metrics_.observe("request_seconds", since(job.arrived));
  std::list<Running> over;
  over.splice(over.begin(), running_, at);
  running_count_ = static_cast<int64_t>(running_.size());
  conclude(over.front().job, std::move(made), ending, error);
}

/// About twice a second.
void Scheduler::measure() {
  const auto now = Clock::now();
  if (now - measured_ < std::chrono::milliseconds(500) && !running_.empty()) return;
  measured_ = now;
  metrics_.set("requests_running", static_cast<double>(running_.size()));
  metrics_.set("requests_resting", static_cast<double>(std::count_if(
                                       running_.begin(), running_.end(),
                                       [](const Running& r) { return r.client_is_slow; })));
  metrics_.set("state_reserved_bytes", static_cast<double>(budget_.bytes()));
  measure_models();
  Json all = Json::array();
  for (const Running& running : running_) {
    int64_t rows = 0, paused = 0, said = 0, waits = 0, yields = 0;
    for (const Row& row : running.rows) {
      rows += row.id && !row.done && !row.paused ? 1 : 0;
      paused += row.paused ? 1 : 0;
      waits += !row.id && !row.done ? 1 : 0;
      said += row.tokens;
      yields += row.yields;
    }
    all.push_back({{"id", running.job.id},
                   {"model", running.job.model->entry.id},
                   {"client", running.job.client},
                   {"priority", running.job.priority},
                   {"seconds", std::chrono::duration<double>(now - running.job.arrived).count()},
                   {"prompt_tokens", running.job.prompt_tokens},
                   {"generated_tokens", said},
                   {"texts_running", rows},
                   {"texts_waiting", waits},
                   {"texts_resting", paused},
                   {"preemptions", yields}});
  }
  const std::lock_guard lock(mutex_);
  view_ = std::move(all);
}

/// Metrics of the states and caches of all models in use.
void Scheduler::measure_models() {
  std::erase_if(models_in_use_, [](const ModelInUse& known) { return known.model.expired(); });
  double states = 0, cached = 0;
  for (ModelInUse& known : models_in_use_) {
    const ServedModelPtr model = known.model.lock();
    if (!model) continue;
    if (model->engine) states += static_cast<double>(model->engine->state().page_bytes());
    if (!model->cache) continue;
    const infer::PrefixCacheStats& now = model->cache->stats();
    const auto add = [&](const char* name, int64_t after, int64_t before) {
      if (after > before) metrics_.add(name, static_cast<double>(after - before));
    };
    add("prefix_cache_hits_total", now.hits, known.counted.hits);
    add("prefix_cache_evictions_total", now.evictions, known.counted.evictions);
    add("prefix_cache_snapshots_total", now.snapshots, known.counted.snapshots);
    known.counted = now;
    cached += static_cast<double>(model->cache->bytes());
  }
  metrics_.set("state_bytes", states);
  metrics_.set("prefix_cache_bytes", cached);
}

Json Scheduler::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

int Scheduler::retry_after() const {
  const std::lock_guard lock(mutex_);
  return std::clamp(static_cast<int>(static_cast<double>(waiting_tokens_) /
                                     std::max(1.0, tokens_per_second_.load())),
                    1, 60);
}

}  // namespace tessera::serve
