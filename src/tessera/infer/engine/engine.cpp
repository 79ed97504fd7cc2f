#include "tessera/infer/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/base/threads.h"
#include "tessera/infer/engine/mask_predict.h"

namespace tessera::infer {
namespace {

using Clock = std::chrono::steady_clock;

/// The most likely token of each row of logits on a device, by one copy. Ties go to the lowest id,
/// as on the CPU.
std::vector<int64_t> most_likely(const Tensor& logits_NC) {
  const auto [largest_N, id_N] = logits_NC.max(1);
  const Tensor here = at::stack({largest_N.to(at::kDouble), id_N.to(at::kDouble)}).to(at::kCPU);
  const auto* const numbers = here.const_data_ptr<double>();
  const int64_t n = logits_NC.size(0);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(numbers[i]))
      fail(ErrorKind::input, "generate", "logits that are not finite among {}", logits_NC.size(1));
    ids.push_back(static_cast<int64_t>(numbers[n + i]));
  }
  return ids;
}

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

struct Engine::Job {
  std::unique_ptr<Task> task;
  std::vector<size_t> rows;  // batcher rows, parallel to the task's
  const CancelToken* cancel = nullptr;
  bool cancelled = false, keep = false, search = false, paused = false;
  bool read = false;   // its prompt has been fed
  bool begun = false;  // has chosen its first token
  bool alone = false;  // a call with it failed: until it decodes, its calls have no other request
  const Job* first = nullptr;  // prefills the shared prompt for both
  std::exception_ptr error = nullptr;
  std::optional<SavedState> kept = {};
  std::vector<int64_t> predicted = {};  // for prompt lookup
  int64_t drafted = 0, accepted = 0;
};

std::string recording_note(const std::string& failure) {
  return fmt::format(
      "decoding steps could not be recorded as a graph ({}): operations are launched one by one; "
      "TESSERA_CUDA_GRAPHS=0 does not try",
      failure);
}

Engine::Engine(const model::Model& model, const Options& options)
    : model_(model),
      options_(options),
      batcher_(model,
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
  drafter_.emplace(model, options.speculation, options.cancel);
  if (options.speculation.adaptive)
    draft_length_.emplace(drafter_->most(), options.speculation.tree_width);
}

Engine::~Engine() = default;

Engine::Id Engine::submit(const Request& asked) {
  const model::ModelSpec& spec = model_.spec();
  Request request = asked;
  // virtual tokens take positions
  if (model_.virtual_tokens() > 0 && spec.max_positions() > 0)
    request.decoding.context =
        std::clamp<int64_t>(spec.max_positions() - model_.virtual_tokens(), 1,
                            longest_sequence(spec, request.decoding.context));
  const Sequence& begin = request.prompt;
  check_decoding(spec, request.decoding);
  check_choice(request);
  check_mask_predict(spec, request);
  check_targets(model_, request);
  const bool scores = request.decoding.max_new_tokens == 0 && !request.targets.ids.empty();
  if (!scores || request.beams) check_generates(model_);
  const bool answers = spec.encoder != nullptr;
  const bool features = begin.features != nullptr;
  if (!request.resume_from) {
    check_source(spec, begin);
    // the context limits the sequence that the decoder writes
    check_prompt(spec, answers ? begin.source : begin.tokens,
                 features ? 0 : request.decoding.context, "the prompt");
  }
  if (features && options_.cache != nullptr)
    fail(ErrorKind::usage, "engine",
         "a prefix cache for answers to features, which share no beginning; leave it out");
  if (begin.tokens.empty() || begin.source.empty() == answers)
    fail(ErrorKind::usage, "engine", "{} tokens and a source of {}; expected {}",
         begin.tokens.size(), begin.source.size(),
         answers ? "a source, and the start of its answer" : "tokens and no source");
  if (request.decoding.shift && (request.beams || request.keep || request.resume_from))
    fail(ErrorKind::usage, "context-shift",
         "context shift is not available with {}; leave --context-shift out",
         request.beams ? "beam search" : "sessions");
  if (!request.generated.empty() &&
      (request.beams || request.decoding.shift || request.decoding.sampling.mirostat != 0))
    fail(ErrorKind::usage, "engine",
         "beam search, context shift and mirostat cannot continue generated tokens; they start "
         "again");
  for (const int64_t id : request.generated)
    if (id < 0 || id >= spec.vocab)
      fail(ErrorKind::input, "engine", "generated token {}; expected 0 to {}", id, spec.vocab - 1);
  if (request.beams && (request.beams->beams < 1 || request.resume_from || request.keep))
    fail(ErrorKind::usage, "engine",
         "a search of {} beams: expected at least 1, and no memory of one row",
         request.beams->beams);
  const auto first = request.shares_prefix_with ? jobs_.find(*request.shares_prefix_with)
                                                : jobs_.end();  // may be finished
  if (first != jobs_.end() && !first->second->rows.empty()) {
    const Sequence& shared = *first->second->task->rows().front();
    if (!request.targets.ids.empty() || request.resume_from ||
        (!first->second->begun && (shared.tokens != begin.tokens || shared.source != begin.source ||
                                   shared.features != begin.features)))
      fail(ErrorKind::usage, "engine",
           "a request with the prompt of request {}: expected the same tokens, no targets and no "
           "memory of its own",
           *request.shares_prefix_with);
  }
  auto job = std::make_unique<Job>();
  if (first != jobs_.end() && !first->second->read && !first->second->rows.empty())
    job->first = first->second->first ? first->second->first : first->second.get();
  const auto make = spec.mask       ? make_mask_predict
                    : request.beams ? make_beam_task
                                    : make_sampling_task;
  job->task = make(model_, options_.tokenizer, request);
  job->cancel = request.cancel;
  job->keep = request.keep;
  job->search = request.beams.has_value();
  job->predicted = std::move(request.predicted);
  job->rows.push_back(add_row(*job));
  if (request.resume_from && request.resume_from->state.rows() > 0 &&
      request.resume_from->state.length(0) > 0)
    batcher_.resume(job->rows[0], request.resume_from->state, request.resume_from->last);
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
    request.decoding.choice = i;
    Request own = request;
    if (each) each(i, own);
    try {
      ids.push_back(submit(own));
    } catch (...) {
      for (const Id id : ids) cancel(id);
      throw;
    }
    request.shares_prefix_with = ids.front();
    request.targets = {};
    if (request.resume_from) request.shares_prefix_with.reset();
  }
  return ids;
}

void Engine::cancel(Id id) {
  jobs_.at(id)->cancelled = true;
}

void Engine::set_paused(Id id, bool paused) {
  jobs_.at(id)->paused = paused;
}

bool Engine::done(Id id) const {
  return jobs_.at(id)->task->done() && jobs_.at(id)->rows.empty();
}

Engine::Result Engine::take(Id id) {
  require(done(id), "engine", "request {} is not done", id);
  const auto job = std::move(jobs_.extract(id).mapped());
  Result result{std::move(job->task->result()), std::move(job->kept)};
  result.generation.drafted_tokens = job->drafted;
  result.generation.accepted_tokens = job->accepted;
  return result;
}

bool Engine::step(int64_t budget) {
  require(budget > 0, "engine", "a budget of {} tokens", budget);
  const at::NoGradGuard no_gradients;
  end_what_is_over();
  const std::vector<Batcher::Work> work = plan(budget);
  const int64_t prefill = std::count_if(
      work.begin(), work.end(), [&](const Batcher::Work& w) { return !batcher_.decodes(w); });
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
  const size_t row = batcher_.add();
  if (row >= owners_.size()) owners_.resize(row + 1, nullptr);
  owners_[row] = &job;
  return row;
}

void Engine::drop_row(size_t row) {
  batcher_.drop(row);
  owners_[row] = nullptr;
}

/// Removes the rows of a finished request.
void Engine::end(Job& job) {
  share(job);
  const std::vector<const Sequence*> sequences = job.task->rows();
  for (size_t r = 0; r < job.rows.size(); ++r) {
    // the final hypotheses of a beam search are not what its rows have been fed
    if (job.task->result().finish_reason != "error" && !job.search)
      batcher_.cache_prefix(job.rows[r], *sequences[r]);
    if (job.keep) job.kept = SavedState{batcher_.state(job.rows[r]), batcher_.last(job.rows[r])};
    drop_row(job.rows[r]);
    if (drafter_) drafter_->drop(job.rows[r]);
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

/// The input of every row. A request that failed together with others gets calls of its own.
std::vector<Batcher::Work> Engine::plan(int64_t budget) {
  std::vector<Batcher::Work> work;
  for (const auto& [id, job] : jobs_) {
    if (job->rows.empty() || job->first != nullptr || job->paused) continue;
    const std::vector<const Sequence*> sequences = job->task->rows();
    std::vector<Batcher::Work> own;
    for (size_t r = 0; r < job->rows.size(); ++r)
      own.push_back({.row = job->rows[r],
                     .sequence = sequences[r],
                     .own = job->task->wants_from(),
                     .whole = job->task->whole()});
    if (job->alone) return own;
    work.insert(work.end(), own.begin(), own.end());
  }
  if (drafter_) draft(work, budget);
  return work;
}

void Engine::draft(std::vector<Batcher::Work>& work, int64_t budget) {
  std::vector<DraftModel::Ask> asks;
  std::vector<size_t> which;
  const bool begun = std::all_of(work.begin(), work.end(), [&](const Batcher::Work& w) {
    return batcher_.decodes(w) && owner(w.row).begun;
  });
  // steps with prefill do not measure the draft length
  int64_t most = drafter_->most();
  if (draft_length_ && begun) most = draft_length_->next(static_cast<int64_t>(work.size()));
  for (size_t w = 0; w < work.size(); ++w) {
    Job& job = owner(work[w].row);
    // a row without a generated token, or one that is computed again, advances by one token
    if (job.rows.size() > 1 || !job.begun || job.alone ||
        batcher_.changes(work[w].row, *work[w].sequence))
      continue;
    const Task& task = *job.task;
    const int64_t length = batcher_.place(size_of(work[w].sequence->tokens));
    // no draft token beyond a position where all rotary angles change
    const int64_t straight = batcher_.calls().until(length) - length,
                  count = std::min({most, task.max_draft_tokens(), straight});
    if (count <= 0) continue;
    const int64_t width = std::min(options_.speculation.tree_width, straight / count);
    asks.push_back({work[w].row, work[w].sequence, count,
                    [&job](std::span<const float> logits, const std::vector<int64_t>& tokens) {
                      try {
                        return job.task->draft_token(logits, tokens);
                      } catch (...) {
                        job.error = std::current_exception();
                        return int64_t{0};
                      }
                    },
                    width, job.predicted});
    which.push_back(w);
  }
  if (asks.empty()) return;
  std::vector<DraftTree> drafts(asks.size());
  const auto start = Clock::now();
  try {
    drafts = drafter_->draft(asks, budget);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) throw;
    for (auto& [id, job] : jobs_) job->cancelled = true;
  }
  const double seconds = since(start);
  counts_.decode_seconds += seconds;
  int64_t made = 0;
  for (const DraftModel::Ask& ask : asks) made += ask.count;
  if (draft_length_ && begun) draft_length_->drafted(made, seconds);
  for (size_t i = 0; i < which.size(); ++i) work[which[i]].drafts = std::move(drafts[i]);
}

/// The model call of a step. If it fails, its rows are left half advanced.
void Engine::feed(const std::vector<Batcher::Work>& work, int64_t budget) {
  try {
    batcher_.step(work, budget);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::cancelled) return rebuild();
    for (auto& [id, job] : jobs_) job->cancelled = true;
  } catch (const std::exception&) {
    return rebuild();
  }
  if (const model::RecordedSteps* steps = batcher_.recorded()) {
    counts_.replayed_steps = steps->replayed();
    counts_.recording_failure = steps->failure();
  }
  on_hidden();
}

/// Counts the time of a step.
void Engine::book(const std::vector<Batcher::Work>& work, int64_t prefill, double seconds) {
  const int64_t decoding = static_cast<int64_t>(work.size()) - prefill;
  const int64_t called = batcher_.called_tokens(), sources = batcher_.called_source_tokens();
  const int64_t read = sources + (prefill == 0 ? 0 : called - std::min(decoding, called));
  const double share =
      static_cast<double>(read) / static_cast<double>(std::max<int64_t>(1, called + sources));
  counts_.prefill_seconds += seconds * share;
  counts_.decode_seconds += seconds * (1 - share);
  if (!draft_length_ || prefill > 0 || called == 0) return;
  draft_length_->called(called, seconds);
  counts_.plain_tokens_per_s = draft_length_->speed(decoding, 0);
}

/// The request that caused a failed call is unknown. The rows of the call are computed again, each
/// request in a call of its own, and the request whose own call fails has failed.
void Engine::rebuild() {
  const std::exception_ptr error = std::current_exception();
  const std::vector<size_t> called = batcher_.called();
  std::vector<Job*> jobs;
  for (const size_t row : called) jobs.push_back(&owner(row));
  std::sort(jobs.begin(), jobs.end());
  jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
  if (jobs.empty()) std::rethrow_exception(error);
  for (Job* job : jobs) {
    if (job->alone) job->error = error;
    job->alone = true;
    for (const size_t row : job->rows) {
      batcher_.restart(row);
      if (drafter_) drafter_->drop(row);
    }
  }
}

/// Passes the hidden states of a call on.
void Engine::on_hidden() {
  for (const Batcher::Fed& fed : batcher_.fed()) {
    Job& job = owner(fed.row);
    if (drafter_ && !job.search) drafter_->on_hidden(fed.row, fed.begin, fed.hidden_ND);
    if (job.error || job.cancelled || job.read) continue;
    try {
      job.task->on_hidden(fed.begin, fed.hidden_ND);
    } catch (...) {
      job.error = std::current_exception();
    }
  }
}

/// Requests that wait for this prompt resume from its state, or prefill it themselves if it ended
/// early.
void Engine::share(const Job& job) {
  for (auto& [id, other] : jobs_) {
    if (other->first != &job) continue;
    other->first = nullptr;
    if (job.read && !other->rows.empty() && batcher_.last(job.rows[0]).defined())
      batcher_.resume(other->rows[0], batcher_.state(job.rows[0]), batcher_.last(job.rows[0]));
  }
}

/// Called when a request's prompt has been fed; returns whether it generates tokens.
bool Engine::read(Job& job) {
  if (job.read) return true;
  job.read = true;
  share(job);
  job.task->book(batcher_.reused(job.rows[0]));
  const Generation& result = job.task->result();
  counts_.prefill_tokens += result.prompt_tokens - result.cached_tokens;
  try {
    if (job.task->whole()) job.task->read_source(batcher_.encoded(job.rows[0]));
    job.task->begin();
  } catch (...) {
    job.error = std::current_exception();
  }
  return !job.error && !job.task->done();
}

/// Requests whose rows have been fed choose their next tokens; then their callbacks are called.
void Engine::decide(const std::vector<Batcher::Work>& work) {
  struct Ready {
    Job* job;
    const DraftTree* drafts;
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
                                 [&](const Batcher::Work& x) { return batcher_.ready(x); }) &&
                     read(*job);
    const int64_t begin = n;
    for (size_t i = w; i < end && all; ++i) {
      hidden.push_back(batcher_.hidden(work[i].row));
      n += hidden.back().size(0);
    }
    if (all) ready.push_back({job, &work[w].drafts, begin, n - begin});
    w = end;
  }
  if (ready.empty()) return;
  const Tensor logits = model_.logits(at::cat(hidden));
  const auto takes_most_likely = [](const Ready& r) {
    return r.job->task->takes_most_likely(r.length - 1);
  };
  if (!logits.is_cpu() && std::all_of(ready.begin(), ready.end(), takes_most_likely)) {
    const std::vector<int64_t> ids = most_likely(logits);
    for (const Ready& r : ready)
      r.job->task->choose_most_likely(
          std::span(ids).subspan(static_cast<size_t>(r.begin), static_cast<size_t>(r.length)),
          *r.drafts);
  } else {
    const Tensor here = logits.to(at::kCPU, at::kFloat).contiguous();
    parallel_for(static_cast<int64_t>(ready.size()), 1, [&](int64_t from, int64_t to) {
      const at::NoGradGuard no_gradients;
      for (int64_t i = from; i < to; ++i) {
        const Ready& r = ready[static_cast<size_t>(i)];
        try {
          r.job->task->choose(here.narrow(0, r.begin, r.length), *r.drafts);
        } catch (...) {
          r.job->error = std::current_exception();
        }
      }
    });
  }
  for (const Ready& r : ready) {
    if (r.job->error) continue;
    try {
      apply(*r.job, *r.drafts);
    } catch (...) {
      r.job->error = std::current_exception();
    }
  }
}

void Engine::apply(Job& job, const DraftTree& drafts) {
  job.alone = false;
  const auto rows = static_cast<int64_t>(job.rows.size());
  const int64_t last = size_of(job.task->rows().front()->tokens) - 1;  // the last token fed
  const Task::Outcome outcome = job.task->take();
  const auto accepted = static_cast<int64_t>(outcome.accepted.size());
  if (job.task->whole()) {
    if (job.task->done()) counts_.decode_tokens += size_of(job.task->result().token_ids);
    for (const size_t row : job.rows) batcher_.keep(row, 0);
  } else if (job.begun) {
    counts_.decode_tokens += rows + accepted;
  }
  job.begun = true;
  if (!drafts.empty()) {
    std::vector<int64_t> way = {0}, ids;
    int64_t deepest = 0;
    for (const int64_t node : outcome.accepted) {
      way.push_back(node + 1);
      ids.push_back(drafts.ids[static_cast<size_t>(node)]);
    }
    for (int64_t node = 0; node < drafts.size(); ++node)
      deepest = std::max(deepest, drafts.depth(node) + 1);
    const Tensor hidden = batcher_.hidden(job.rows[0]);
    drafter_->on_hidden(job.rows[0], last,
                        hidden.index_select(0, at::tensor(way, at::kLong).to(hidden.device())));
    batcher_.keep(job.rows[0], outcome.accepted);
    drafter_->keep(job.rows[0], ids);
    if (draft_length_) draft_length_->settled(deepest, accepted, drafts.size());
    job.drafted += drafts.size();
    job.accepted += accepted;
    counts_.drafted_tokens += drafts.size();
    counts_.accepted_tokens += accepted;
  }
  if (job.task->done()) return;
  if (outcome.replaced) {
    batcher_.restart(job.rows[0]);
    if (drafter_) drafter_->drop(job.rows[0]);
    job.begun = false;  // the remaining tokens are prefilled like a prompt
    counts_.prefill_tokens += size_of(job.task->rows().front()->tokens);
    return;
  }
  const size_t before = job.rows.size(), after = outcome.parents.size();
  while (job.rows.size() < after) job.rows.push_back(add_row(job));
  batcher_.reorder_rows(std::span(job.rows).first(std::max(before, after)), outcome.parents);
  for (; job.rows.size() > after; job.rows.pop_back()) drop_row(job.rows.back());
}

}  // namespace tessera::infer
