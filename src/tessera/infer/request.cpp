#include "tessera/infer/request.h"

#include <algorithm>

namespace tessera::infer {
namespace {

void check_ids(const std::vector<int64_t>& ids, int64_t vocab, const std::string& which) {
  for (const int64_t id : ids)
    if (id < 0 || id >= vocab)
      fail(ErrorKind::input, "generate", "{} {}; expected 0 to {}", which, id, vocab - 1);
}

}  // namespace

int64_t longest_sequence(const model::ModelSpec& spec, int64_t context) {
  if (context == 0) return spec.longest_sequence();
  const int64_t positions = spec.max_positions();
  return positions == 0 ? context : std::min(context, positions);
}

Sequence first_sequence(const model::ModelSpec& spec, const std::vector<int64_t>& prompt) {
  if (spec.encoder) return {prompt, {spec.start}, 1};
  return {{}, prompt, static_cast<int64_t>(prompt.size())};
}

void check_generates(const model::Model& model) {
  if (!model.spec().causal() || !model.has_head())
    fail(ErrorKind::usage, "generate",
         "this model {} and cannot generate; expected a decoder with a head",
         model.spec().causal() ? "has no head" : "is an encoder");
  if (const std::string reason = model.spec().no_generation_reason(); !reason.empty())
    fail(ErrorKind::usage, "generate", "{}", reason);
}

void check_prompt(const model::ModelSpec& spec,
                  const std::vector<int64_t>& prompt,
                  int64_t context,
                  const std::string& which) {
  const int64_t limit = longest_sequence(spec.encoder ? *spec.encoder : spec, context);
  if (prompt.empty())
    fail(ErrorKind::input, "generate", "{} is empty; expected at least one token", which);
  if (limit > 0 && static_cast<int64_t>(prompt.size()) > limit)
    fail(ErrorKind::input, "generate", "{} has {} tokens; this model's context is {}: shorten it",
         which, prompt.size(), limit);
  check_ids(prompt, spec.vocab, which + ": token id");
}

void check_writing(const model::ModelSpec& spec, const Writing& writing) {
  writing.sampling.check();
  check_ids(writing.forced_begin, spec.vocab, "forced id");
  if (writing.forced_end) check_ids({*writing.forced_end}, spec.vocab, "forced id");
}

std::optional<int64_t> forced_id(const Writing& writing, int64_t made) {
  if (made < static_cast<int64_t>(writing.forced_begin.size()))
    return writing.forced_begin[static_cast<size_t>(made)];
  return made + 1 == writing.max_new_tokens ? writing.forced_end : std::nullopt;
}

}  // namespace tessera::infer
