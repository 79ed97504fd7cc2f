#include "tessera/infer/engine/engine.h"

#include <algorithm>
#include <chrono>

#include "tessera/base/threads.h"
#include "tessera/infer/engine/mask_predict.h"

namespace tessera::infer {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

struct Engine::Job {
  std::unique_ptr<Task> task;
  std::vector<size_t> rows;  // of the feeder, parallel to the task's
  const CancelToken* cancel = nullptr;
  bool cancelled = false, keep = false, search = false, rests = false;
  bool read = false;           // what it begins with
  bool begun = false;          // has chosen a token
  bool alone = false;          // a call with it failed: it is fed by itself until it decodes
  const Job* first = nullptr;  // reads the beginning for both
  std::exception_ptr error = nullptr;
  std::optional<Kept> kept = {};
  std::vector<int64_t> expected = {};  // for guesses
  int64_t guessed = 0, accepted = 0;
};

Engine::Engine(const model::Model& model, const Options& options)
    : model_(model),
      options_(options),
      feeder_(model,
              {.max_pending = options.speculation.max_pending(),
               .cache = options.cache,
               .kv = options.kv,
               .cancel = options.cancel,
               .statistics = options.statistics}) {
  if (!options.speculation.on()) return;
  if (model.spec().mask)
    fail(ErrorKind::usage, "generate",
         "speculative decoding of a non-autoregressive model (Mask-Predict) is not supported; "
         "leave it out");
  guesser_.emplace(model, options.speculation, options.cancel);
  if (options.speculation.paced) pace_.emplace(guesser_->most(), options.speculation.branches);
}

Engine::~Engine() = default;

Engine::Id Engine::submit(const Request& asked) {
  const model::ModelSpec& spec = model_.spec();
  Request request = asked;
  // virtual tokens take positions
  if (model_.virtual_tokens() > 0 && spec.max_positions() > 0)
    request.writing.context = std::clamp<int64_t>(spec.max_positions() - model_.virtual_tokens(), 1,
                                                  longest_sequence(spec, request.writing.context));
  const Sequence& begin = request.begin;
  check_writing(spec, request.writing);
  check_choice(request);
  check_mask_predict(spec, request);
  check_targets(model_, request);
  const bool scores = request.writing.max_new_tokens == 0 && !request.targets.ids.empty();
  if (!scores || request.beams) check_generates(model_);
  const bool answers = spec.encoder != nullptr;
  const bool features = begin.features != nullptr;
  if (!request.resumed) {
    check_source(spec, begin);
    // the context is that of what is written
    check_prompt(spec, answers ? begin.source : begin.tokens,
                 features ? 0 : request.writing.context, "the prompt");
  }
  if (features && options_.cache != nullptr)
    fail(ErrorKind::usage, "engine",
         "a prefix cache for answers to features, which share no beginning; leave it out");
  if (begin.tokens.empty() || begin.source.empty() == answers)
    fail(ErrorKind::usage, "engine", "{} tokens and a source of {}; expected {}",
         begin.tokens.size(), begin.source.size(),
         answers ? "a source, and the start of its answer" : "tokens and no source");
  if (request.writing.shift && (request.beams || request.keep || request.resumed))
    fail(ErrorKind::usage, "context-shift",
         "context shift is not available with {}; leave --context-shift out",
         request.beams ? "beam search" : "sessions");
  if (!request.said.empty() &&
      (request.beams || request.writing.shift || request.writing.sampling.mirostat != 0))
    fail(ErrorKind::usage, "engine",
         "beam search, context shift and mirostat cannot continue generated tokens; they start "
         "again");
  for (const int64_t id : request.said)
    if (id < 0 || id >= spec.vocab)
      fail(ErrorKind::input, "engine", "generated token {}; expected 0 to {}", id, spec.vocab - 1);
  if (request.beams && (request.beams->beams < 1 || request.resumed || request.keep))
    fail(ErrorKind::usage, "engine",
         "a search of {} beams: expected at least 1, and no memory of one row",
         request.beams->beams);
  const auto first =
      request.begins_as ? jobs_.find(*request.begins_as) : jobs_.end();  // may be gone
  if (first != jobs_.end() && !first->second->rows.empty()) {
    const Sequence& shared = *first->second->task->rows().front();
    if (!request.targets.ids.empty() || request.resumed ||
        (!first->second->begun && (shared.tokens != begin.tokens || shared.source != begin.source ||
                                   shared.features != begin.features)))
      fail(ErrorKind::usage, "engine",
           "a request with the prompt of request {}: expected the same tokens, no targets and no "
           "memory of its own",
           *request.begins_as);
  }
  auto job = std::make_unique<Job>();
  if (first != jobs_.end() && !first->second->read && !first->second->rows.empty())
    job->first = first->second->first ? first->second->first : first->second.get();
  const auto make = spec.mask ? make_mask_predict : request.beams ? make_search : make_writer;
  job->task = make(model_, options_.tokenizer, request);
  job->cancel = request.cancel;
  job->keep = request.keep;
  job->search = request.beams.has_value();
  job->expected = std::move(request.expected);
  job->rows.push_back(add_row(*job));
  if (request.resumed && request.resumed->state.rows() > 0 && request.resumed->state.length(0) > 0)
    feeder_.resume(job->rows[0], request.resumed->state, request.resumed->last);
  const Id id = next_++;
  jobs_.emplace(id, std::move(job));
  return id;
}

std::vector<Engine::Id> Engine::submit_choices(const Request& asked,
                                               int64_t n,
                                               const std::function<void(int64_t, Request&)>& each) {
  require(n > 0, "engine", "{} choices; expected at least 1", n);
  std::vector<Id> ids;
  Request request = asked;
  for (int64_t i = 0; i < n; ++i) {
    request.writing.choice = i;
    Request own = request;
    if (each) each(i, own);
    try {
      ids.push_back(submit(own));
    } catch (...) {
      for (const Id id : ids) cancel(id);
      throw;
    }
    request.begins_as = ids.front();
    request.targets = {};
    if (request.resumed) request.begins_as.reset();
  }
  return ids;
}

void Engine::cancel(Id id) {
  jobs_.at(id)->cancelled = true;
}

void Engine::rest(Id id, bool rests) {
  jobs_.at(id)->rests = rests;
}

bool Engine::done(Id id) const {
  return jobs_.at(id)->task->done() && jobs_.at(id)->rows.empty();
}

Engine::Result Engine::take(Id id) {
  require(done(id), "engine", "request {} is not done", id);
  const auto job = std::move(jobs_.extract(id).mapped());
  Result result{std::move(job->task->result()), std::move(job->kept)};
  result.generation.guessed_tokens = job->guessed;
  result.generation.accepted_tokens = job->accepted;
  return result;
}

bool Engine::step(int64_t budget) {
  require(budget > 0, "engine", "a budget of {} tokens", budget);
  const at::NoGradGuard no_gradients;
  end_what_is_over();
  const std::vector<Feeder::Work> work = plan(budget);
  const int64_t prefill = std::count_if(work.begin(), work.end(),
                                        [&](const Feeder::Work& w) { return !feeder_.decodes(w); });
  const auto start = Clock::now();
  if (!work.empty()) feed(work, budget);
  decide(work);
  if (!work.empty()) book(work, prefill, since(start));
  end_what_is_over();
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& j) { return !j.second->rows.empty(); });
}

Engine::Job& Engine::owner(size_t row) {
  require(row < owners_.size() && owners_[row] != nullptr, "engine", "row {} belongs to no request",
          row);
  return *owners_[row];
}

size_t Engine::add_row(Job& job) {
  const size_t row = feeder_.add();
  if (row >= owners_.size()) owners_.resize(row + 1, nullptr);
  owners_[row] = &job;
  return row;
}

void Engine::drop_row(size_t row) {
  feeder_.drop(row);
  owners_[row] = nullptr;
}

/// The rows of a request that is done go.
void Engine::end(Job& job) {
  share(job);
  const std::vector<const Sequence*> sequences = job.task->rows();
  for (size_t r = 0; r < job.rows.size(); ++r) {
    // what a search has last is not what its rows have been fed
    if (job.task->result().finish_reason != "error" && !job.search)
      feeder_.remember(job.rows[r], *sequences[r]);
    if (job.keep) job.kept = Kept{feeder_.state(job.rows[r]), feeder_.last(job.rows[r])};
    drop_row(job.rows[r]);
    if (guesser_) guesser_->drop(job.rows[r]);
  }
  job.rows.clear();
}

void Engine::end_what_is_over() {
  const auto requested = [](const CancelToken* token) {
    return token != nullptr && token->requested();
  };
  for (auto& [id, job] : jobs_) {
    if (job->rows.empty()) continue;
    try {
      if (job->error) job->task->fail_with(std::exchange(job->error, nullptr));
      if (job->cancelled || requested(job->cancel) || requested(options_.cancel))
        job->task->finish("cancelled");
    } catch (...) {
      job->task->fail_with(std::current_exception());
    }
    if (job->task->done()) end(*job);
  }
}

/// What every row is to be fed. One that failed among others is alone in its calls.
std::vector<Feeder::Work> Engine::plan(int64_t budget) {
  std::vector<Feeder::Work> work;
  for (const auto& [id, job] : jobs_) {
    if (job->rows.empty() || job->first != nullptr || job->rests) continue;
    const std::vector<const Sequence*> sequences = job->task->rows();
    std::vector<Feeder::Work> own;
    for (size_t r = 0; r < job->rows.size(); ++r)
      own.push_back({.row = job->rows[r],
                     .sequence = sequences[r],
                     .own = job->task->wants_from(),
                     .whole = job->task->whole()});
    if (job->alone) return own;
    work.insert(work.end(), own.begin(), own.end());
  }
  if (guesser_) guess(work, budget);
  return work;
}

void Engine::guess(std::vector<Feeder::Work>& work, int64_t budget) {
  std::vector<Draft::Ask> asks;
  std::vector<size_t> which;
  const bool begun = std::all_of(work.begin(), work.end(), [&](const Feeder::Work& w) {
    return feeder_.decodes(w) && owner(w.row).begun;
  });
  // what reads prompts is no measure
  int64_t most = guesser_->most();
  if (pace_ && begun) most = pace_->next(static_cast<int64_t>(work.size()));
  for (size_t w = 0; w < work.size(); ++w) {
    Job& job = owner(work[w].row);
    // what has not said a word, or is computed anew, goes on by one token
    if (job.rows.size() > 1 || !job.begun || job.alone ||
        feeder_.changes(work[w].row, *work[w].sequence))
      continue;
    const Task& task = *job.task;
    const int64_t length = feeder_.place(size_of(work[w].sequence->tokens));
    // no guess goes where all angles change
    const int64_t straight = feeder_.calls().until(length) - length,
                  count = std::min({most, task.may_guess(), straight});
    if (count <= 0) continue;
    const int64_t width = std::min(options_.speculation.branches, straight / count);
    asks.push_back({work[w].row, work[w].sequence, count,
                    [&job](std::span<const float> logits, const std::vector<int64_t>& tokens) {
                      try {
                        return job.task->guess(logits, tokens);
                      } catch (...) {
                        job.error = std::current_exception();
                        return int64_t{0};
                      }
                    },
                    width, job.expected});
    which.push_back(w);
  }
  if (asks.empty()) return;
  std::vector<GuessTree> guesses(asks.size());
  const auto start = Clock::now();
  try {
    guesses = guesser_->guess(asks, budget);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    for (auto& [id, job] : jobs_) job->cancelled = true;
  }
  const double seconds = since(start);
  counts_.decode_seconds += seconds;
  int64_t made = 0;
  for (const Draft::Ask& ask : asks) made += ask.count;
  if (pace_ && begun) pace_->guessed(made, seconds);
  for (size_t i = 0; i < which.size(); ++i) work[which[i]].guesses = std::move(guesses[i]);
}

/// The call of a step. When it fails, its rows are left half advanced.
void Engine::feed(const std::vector<Feeder::Work>& work, int64_t budget) {
  try {
    feeder_.step(work, budget);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) return begin_again();
    for (auto& [id, job] : jobs_) job->cancelled = true;
  } catch (const std::exception&) {
    return begin_again();
  }
  hear();
}

/// What a step took.
void Engine::book(const std::vector<Feeder::Work>& work, int64_t prefill, double seconds) {
  const int64_t decoding = static_cast<int64_t>(work.size()) - prefill;
  const int64_t called = feeder_.called_tokens(), sources = feeder_.called_source_tokens();
  const int64_t read = sources + (prefill == 0 ? 0 : called - std::min(decoding, called));
  const double share =
      static_cast<double>(read) / static_cast<double>(std::max<int64_t>(1, called + sources));
  counts_.prefill_seconds += seconds * share;
  counts_.decode_seconds += seconds * (1 - share);
  if (!pace_ || prefill > 0 || called == 0) return;
  pace_->called(called, seconds);
  counts_.plain_tokens_per_s = pace_->speed(decoding, 0);
}

/// A call that fails does not say for whom: its rows are computed anew, each request by itself, and
/// the one that fails by itself has failed.
void Engine::begin_again() {
  const std::exception_ptr error = std::current_exception();
  const std::vector<size_t> called = feeder_.called();
  std::vector<Job*> jobs;
  for (const size_t row : called) jobs.push_back(&owner(row));
  std::sort(jobs.begin(), jobs.end());
  jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
  if (jobs.empty()) std::rethrow_exception(error);
  for (Job* job : jobs) {
    if (job->alone) job->error = error;
    job->alone = true;
    for (const size_t row : job->rows) {
      feeder_.restart(row);
      if (guesser_) guesser_->drop(row);
    }
  }
}

/// Hands on what a call has made of tokens.
void Engine::hear() {
  for (const Feeder::Fed& fed : feeder_.fed()) {
    Job& job = owner(fed.row);
    if (guesser_ && !job.search) guesser_->hear(fed.row, fed.begin, fed.hidden_ND);
    if (job.error || job.cancelled || job.read) continue;
    try {
      job.task->hear(fed.begin, fed.hidden_ND);
    } catch (...) {
      job.error = std::current_exception();
    }
  }
}

/// Those that wait for what a request reads go on from there, or by themselves where it ends first.
void Engine::share(const Job& job) {
  for (auto& [id, other] : jobs_) {
    if (other->first != &job) continue;
    other->first = nullptr;
    if (job.read && !other->rows.empty() && feeder_.last(job.rows[0]).defined())
      feeder_.resume(other->rows[0], feeder_.state(job.rows[0]), feeder_.last(job.rows[0]));
  }
}

/// All that a request begins with has been read: whether it goes on.
bool Engine::read(Job& job) {
  if (job.read) return true;
  job.read = true;
  share(job);
  job.task->book(feeder_.reused(job.rows[0]));
  const Generation& result = job.task->result();
  counts_.prefill_tokens += result.prompt_tokens - result.cached_tokens;
  try {
    if (job.task->whole()) job.task->read_source(feeder_.encoded(job.rows[0]));
    job.task->begin();
  } catch (...) {
    job.error = std::current_exception();
  }
  return !job.error && !job.task->done();
}

/// Rows that have been fed all choose what follows, and tell who listens.
void Engine::decide(const std::vector<Feeder::Work>& work) {
  struct Ready {
    Job* job;
    const GuessTree* guesses;
    int64_t begin, length;
  };
  std::vector<Ready> ready;
  std::vector<Tensor> hidden;
  int64_t n = 0;
  for (size_t w = 0; w < work.size();) {
    Job* const job = &owner(work[w].row);
    const size_t end = w + job->rows.size();
    const bool all = !job->error && !job->cancelled &&
                     std::all_of(work.begin() + static_cast<std::ptrdiff_t>(w),
                                 work.begin() + static_cast<std::ptrdiff_t>(end),
                                 [&](const Feeder::Work& x) { return feeder_.ready(x); }) &&
                     read(*job);
    const int64_t begin = n;
    for (size_t i = w; i < end && all; ++i) {
      hidden.push_back(feeder_.hidden(work[i].row));
      n += hidden.back().size(0);
    }
    if (all) ready.push_back({job, &work[w].guesses, begin, n - begin});
    w = end;
  }
  if (ready.empty()) return;
  const Tensor logits = model_.logits(at::cat(hidden)).to(at::kCPU, at::kFloat).contiguous();
  parallel_for(static_cast<int64_t>(ready.size()), 1, [&](int64_t from, int64_t to) {
    const at::NoGradGuard no_gradients;
    for (int64_t i = from; i < to; ++i) {
      const Ready& r = ready[static_cast<size_t>(i)];
      try {
        r.job->task->choose(logits.narrow(0, r.begin, r.length), *r.guesses);
      } catch (...) {
        r.job->error = std::current_exception();
      }
    }
  });
  for (const Ready& r : ready) {
    if (r.job->error) continue;
    try {
      apply(*r.job, *r.guesses);
    } catch (...) {
      r.job->error = std::current_exception();
    }
  }
}

void Engine::apply(Job& job, const GuessTree& guesses) {
  job.alone = false;
  const auto rows = static_cast<int64_t>(job.rows.size());
  const int64_t last = size_of(job.task->rows().front()->tokens) - 1;  // that has been fed
  const Task::Outcome outcome = job.task->take();
  const auto right = static_cast<int64_t>(outcome.right.size());
  if (job.task->whole()) {
    if (job.task->done()) counts_.decode_tokens += size_of(job.task->result().token_ids);
    for (const size_t row : job.rows) feeder_.keep(row, 0);
  } else if (job.begun) {
    counts_.decode_tokens += rows + right;
  }
  job.begun = true;
  if (!guesses.empty()) {
    std::vector<int64_t> way = {0}, ids;
    int64_t deepest = 0;
    for (const int64_t node : outcome.right) {
      way.push_back(node + 1);
      ids.push_back(guesses.ids[static_cast<size_t>(node)]);
    }
    for (int64_t node = 0; node < guesses.size(); ++node)
      deepest = std::max(deepest, guesses.depth(node) + 1);
    const Tensor hidden = feeder_.hidden(job.rows[0]);
    guesser_->hear(job.rows[0], last,
                   hidden.index_select(0, at::tensor(way, at::kLong).to(hidden.device())));
    feeder_.keep(job.rows[0], outcome.right);
    guesser_->keep(job.rows[0], ids);
    if (pace_) pace_->settled(deepest, right, guesses.size());
    job.guessed += guesses.size();
    job.accepted += right;
    counts_.guessed_tokens += guesses.size();
    counts_.accepted_tokens += right;
  }
  if (job.task->done()) return;
  if (outcome.anew) {
    feeder_.restart(job.rows[0]);
    if (guesser_) guesser_->drop(job.rows[0]);
    job.begun = false;  // what is left is read like a prompt
    counts_.prefill_tokens += size_of(job.task->rows().front()->tokens);
    return;
  }
  const size_t before = job.rows.size(), after = outcome.parents.size();
  while (job.rows.size() < after) job.rows.push_back(add_row(job));
  feeder_.arrange(std::span(job.rows).first(std::max(before, after)), outcome.parents);
  for (; job.rows.size() > after; job.rows.pop_back()) drop_row(job.rows.back());
}

}  // namespace tessera::infer
