#include "tessera/infer/engine/generate.h"

#include "tessera/infer/loading/expert_memory.h"

#include <algorithm>

namespace tessera::infer {
namespace {

/// Rows of a session, and prompts that fit them.
void check_session(const model::ModelSpec& spec,
                   const std::vector<std::vector<int64_t>>& prompts,
                   const Session& session) {
  if (prompts.size() != session.rows.size())
    fail(ErrorKind::usage, "generate",
         "{} prompts for a session of {}: give one for each of its rows, or none", prompts.size(),
         session.rows.size());
  for (const std::vector<int64_t>& prompt : prompts)
    if (spec.encoder && !prompt.empty())
      fail(ErrorKind::usage, "generate",
           "a session of an encoder-decoder has one source; give no prompt, or start another "
           "session");
}

bool resumes(const GenerateOptions& options) {
  return options.session != nullptr && !options.session->rows.empty();
}

void check_prompts(const model::ModelSpec& spec,
                   const std::vector<std::vector<int64_t>>& prompts,
                   const GenerateOptions& options) {
  const int64_t limit = longest_sequence(spec.encoder ? *spec.encoder : spec, options.context);
  for (size_t r = 0; r < prompts.size(); ++r) {
    const std::string which = prompts.size() > 1 ? fmt::format("prompt {}", r) : "the prompt";
    if (resumes(options)) {
      const auto before = static_cast<int64_t>(options.session->rows[r].tokens.size()),
                 length = static_cast<int64_t>(prompts[r].size());
      if (length == 0) continue;
      if (limit > 0 && before + length > limit)
        fail(ErrorKind::input, "generate",
             "{} has {} tokens after the {} of the session; {}: start another session", which,
             length, before, context_name(spec.encoder ? *spec.encoder : spec, options.context));
    }
    check_prompt(spec, prompts[r], options.context, which);
  }
}

void check(const model::Model& model,
           const std::vector<std::vector<int64_t>>& prompts,
           const GenerateOptions& options) {
  check_generates(model);
  check_decoding(model.spec(), options);
  if (!options.features.empty() && (!prompts.empty() || options.session != nullptr))
    fail(ErrorKind::usage, "generate",
         "features with {}; expected features alone, without a prompt or session",
         prompts.empty() ? "a session" : "prompts");
  if (resumes(options)) check_session(model.spec(), prompts, *options.session);
  if (options.choices < 1 || (options.choices > 1 && options.session != nullptr))
    fail(ErrorKind::usage, "generate", "{} texts for each prompt; expected at least 1{}",
         options.choices, options.session != nullptr ? ", and no more in a session" : "");
  if (options.prefill_chunk < 1)
    fail(ErrorKind::usage, "generate", "prefill_chunk = {}; expected at least 1 token",
         options.prefill_chunk);
  check_prompts(model.spec(), prompts, options);
}

/// What row r begins with: its prompt, behind its row of a session where there is one, or the
/// features that it answers.
Request request_of(const model::ModelSpec& spec,
                   const std::vector<std::vector<int64_t>>& prompts,
                   size_t r,
                   const GenerateOptions& options) {
  Request request;
  request.decoding = options;
  request.keep = options.session != nullptr;
  request.logprobs = options.logprobs;
  if (!options.features.empty()) {
    request.prompt = first_sequence(spec, options.features[r]);
    return request;
  }
  const std::vector<int64_t>& prompt = prompts[r];
  if (!resumes(options)) {
    request.prompt = first_sequence(spec, prompt);
    return request;
  }
  const Session& session = *options.session;
  request.decoding.forced_begin.clear();  // it has begun
  request.prompt = session.rows[r];
  request.prompt.tokens.insert(request.prompt.tokens.end(), prompt.begin(), prompt.end());
  const auto row = static_cast<int64_t>(r);
  request.resume_from.emplace();
  if (session.state.rows() > 0)
    request.resume_from = SavedState{session.state.select({row}), session.last[r]};
  return request;
}

/// Where the rows ended, for those who go on from there.
Session session_of(const std::vector<Request>& requests,
                   std::vector<Engine::Result>& results,
                   uint64_t seed) {
  Session session;
  session.seed = seed;
  for (size_t r = 0; r < results.size(); ++r) {
    session.rows.push_back(requests[r].prompt);
    std::vector<int64_t>& tokens = session.rows.back().tokens;
    const std::vector<int64_t>& made = results[r].generation.token_ids;
    tokens.insert(tokens.end(), made.begin(), made.end());
    SavedState& kept = *results[r].kept;
    session.last.push_back(kept.last);
    if (r == 0)
      session.state = std::move(kept.state);
    else if (kept.state.rows() > 0)
      session.state.append(kept.state);
  }
  return session;
}

}  // namespace

Generations run_requests(const model::Model& model,
                         const text::Tokenizer* tokenizer,
                         const std::vector<std::vector<int64_t>>& prompts,
                         const GenerateOptions& options,
                         const std::optional<BeamOptions>& beams) {
  check(model, prompts, options);
  if (beams && options.choices > 1)
    fail(ErrorKind::usage, "generate", "{} texts for each prompt of a search; expected 1",
         options.choices);
  std::optional<ExpertMemory> memory;
  nn::StatisticSink statistics = options.statistics;
  if (options.expert_memory > 0) {
    memory.emplace(model, options.expert_memory);
    statistics = [&](const std::string& name, const Tensor& value) {
      memory->count(name, value);
      if (options.statistics) options.statistics(name, value);
    };
  }
  Engine engine(model, {.tokenizer = tokenizer,
                        .speculation = options.speculation,
                        .cache = options.prefix_cache,
                        .kv = options.kv,
                        .statistics = statistics,
                        .cancel = options.cancel});
  std::vector<Request> requests;
  std::vector<Engine::Id> ids;
  for (size_t r = 0; r < std::max(prompts.size(), options.features.size()); ++r) {
    requests.push_back(request_of(model.spec(), prompts, r, options));
    requests.back().beams = beams;
    const auto listen = [&](int64_t choice, Request& request) {
      if (!options.on_text) return;
      const size_t row = ids.size() + static_cast<size_t>(choice);
      request.on_text = [&options, row](std::string_view text) { options.on_text(row, text); };
    };
    const auto own = engine.submit_choices(requests.back(), options.choices, listen);
    ids.insert(ids.end(), own.begin(), own.end());
  }
  if (options.on_start) options.on_start();
  while (engine.step(options.prefill_chunk))
    if (memory) memory->settle();
  std::vector<Engine::Result> results;
  for (const Engine::Id id : ids) results.push_back(engine.take(id));
  const auto failed = [](const Engine::Result& r) { return r.generation.error != nullptr; };
  const auto first = std::find_if(results.begin(), results.end(), failed);
  if (first != results.end() &&
      (options.session != nullptr || std::all_of(results.begin(), results.end(), failed)))
    std::rethrow_exception(first->generation.error);
  if (options.session != nullptr) {
    *options.session = session_of(requests, results, options.sampling.seed);
    options.session->virtual_tokens = model.virtual_tokens();
  }
  Generations out{engine.counts(), {}};
  for (Engine::Result& result : results) out.rows.push_back(std::move(result.generation));
  return out;
}

Generations generate(const model::Model& model,
                     const text::Tokenizer* tokenizer,
                     const std::vector<std::vector<int64_t>>& prompts,
                     const GenerateOptions& options) {
  return run_requests(model, tokenizer, prompts, options, std::nullopt);
}

}  // namespace tessera::infer
