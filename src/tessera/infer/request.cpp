#include "tessera/infer/request.h"

#include <algorithm>

namespace tessera::infer {
namespace {

/// Longest sequence: what the caller allows, or what the model is made for; never more than it has
/// positions.
int64_t longest_sequence(const model::ModelSpec& spec, int64_t context) {
  if (context == 0) return spec.longest_sequence();
  const int64_t positions = spec.max_positions();
  return positions == 0 ? context : std::min(context, positions);
}

/// Rows of a session, and prompts that fit them.
void check_session(const model::ModelSpec& spec,
                   const std::vector<std::vector<int64_t>>& prompts,
                   const Session& session) {
  if (session.rows.empty()) return;
  if (prompts.size() != session.rows.size())
    fail(ErrorKind::usage, "generate",
         "{} prompts for a session of {}: give one for each of its rows, or none", prompts.size(),
         session.rows.size());
  for (const std::vector<int64_t>& prompt : prompts)
    if (spec.encoder && !prompt.empty())
      fail(ErrorKind::usage, "generate",
           "a session beside an encoder answers the source that it began with; give no prompt, or "
           "begin another session");
}

void check_prompts(const model::ModelSpec& spec,
                   const std::vector<std::vector<int64_t>>& prompts,
                   const GenerateOptions& options) {
  const int64_t limit = longest_sequence(spec.encoder ? *spec.encoder : spec, options.context);
  for (size_t r = 0; r < prompts.size(); ++r) {
    const std::string which = prompts.size() > 1 ? fmt::format("prompt {}", r) : "the prompt";
    const bool resumed = options.session != nullptr && !options.session->rows.empty();
    const auto before =
        resumed ? static_cast<int64_t>(options.session->rows[r].tokens.size()) : int64_t{0};
    const auto length = static_cast<int64_t>(prompts[r].size());
    if (resumed && length == 0) continue;
    if (resumed && limit > 0 && before + length > limit)
      fail(ErrorKind::input, "generate",
           "{} has {} tokens behind the {} of the session; this model's context is {}: begin "
           "another session",
           which, length, before, limit);
    if (prompts[r].empty())
      fail(ErrorKind::input, "generate", "{} is empty; expected at least one token", which);
    if (limit > 0 && static_cast<int64_t>(prompts[r].size()) > limit)
      fail(ErrorKind::input, "generate", "{} has {} tokens; this model's context is {}: shorten it",
           which, prompts[r].size(), limit);
    for (const int64_t id : prompts[r])
      if (id < 0 || id >= spec.vocab)
        fail(ErrorKind::input, "generate", "{}: token id {}; expected 0 to {}", which, id,
             spec.vocab - 1);
  }
}

void check_forced(const model::ModelSpec& spec, const GenerateOptions& options) {
  std::vector<int64_t> forced = options.forced_begin;
  if (options.forced_end) forced.push_back(*options.forced_end);
  for (const int64_t id : forced)
    if (id < 0 || id >= spec.vocab)
      fail(ErrorKind::input, "generate", "forced id {}; expected 0 to {}", id, spec.vocab - 1);
}

}  // namespace

int64_t check_request(const model::Model& model,
                      const std::vector<std::vector<int64_t>>& prompts,
                      const GenerateOptions& options) {
  if (!model.spec().causal() || !model.has_head())
    fail(ErrorKind::usage, "generate",
         "this model {} and cannot generate; expected a decoder with a head",
         model.spec().causal() ? "has no head" : "is an encoder");
  options.sampling.check();
  check_forced(model.spec(), options);
  if (options.session != nullptr) check_session(model.spec(), prompts, *options.session);
  if (options.prefill_chunk < 1)
    fail(ErrorKind::usage, "generate", "prefill_chunk = {}; expected at least 1 token",
         options.prefill_chunk);
  check_prompts(model.spec(), prompts, options);
  return longest_sequence(model.spec(), options.context);
}

std::optional<int64_t> forced_id(const GenerateOptions& options, int64_t made) {
  const bool resumed = options.session != nullptr && !options.session->rows.empty();
  if (!resumed && made < static_cast<int64_t>(options.forced_begin.size()))
    return options.forced_begin[static_cast<size_t>(made)];
  return made + 1 == options.max_new_tokens ? options.forced_end : std::nullopt;
}

Sequence first_sequence(const model::ModelSpec& spec,
                        const std::vector<int64_t>& prompt,
                        const Sequence* row) {
  if (row != nullptr) {
    Sequence longer = *row;
    longer.tokens.insert(longer.tokens.end(), prompt.begin(), prompt.end());
    return longer;
  }
  if (spec.encoder) return {prompt, {spec.start}, 1};
  return {{}, prompt, static_cast<int64_t>(prompt.size())};
}

}  // namespace tessera::infer
