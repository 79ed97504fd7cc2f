#include "tessera/api/decoding.h"

#include <cmath>
#include <set>

#include "tessera/spec/settings.h"
#include "tessera/infer/sampling/seed.h"
#include "tessera/text/grammar/grammar_constraint.h"
#include "tessera/text/grammar/json_schema.h"
#include "tessera/text/grammar/regex_grammar.h"

namespace tessera::api {
namespace {

/// Fields of sampling: those given, then the makers'; filters of theirs only where tokens are
/// drawn.
void read_sampling(spec::Settings& settings,
                   const infer::DecodingDefaults& defaults,
                   infer::SamplingOptions& out) {
  std::set<const infer::SamplingField*> given;
  for (const infer::SamplingField& field : infer::sampling_fields()) {
    const auto value =
        settings.number(field.name, field.least, field.most, field.expected, field.above);
    if (!value) continue;
    if (field.whole() && *value != std::floor(*value))
      fail(ErrorKind::usage, settings.where(), "{}: {}; expected a whole number", field.name,
           *value);
    field.set(out, *value);
    given.insert(&field);
  }
  const auto is_given = [&](const infer::SamplingField& field) { return given.count(&field) > 0; };
  for (const bool filters : {false, true}) {
    if (filters && out.temperature <= 0) break;
    for (const infer::SamplingField& field : infer::sampling_fields())
      if (field.filters == filters && !is_given(field))
        field.set(out, field.get(defaults.sampling));
  }
  out.samplers = defaults.sampling.samplers;
  out.bad_words = settings.texts("bad_words");
  out.check();
  if (const std::string conflict = infer::conflict_among(out, is_given); !conflict.empty())
    fail(ErrorKind::usage, settings.where(), "{}", conflict);
}

/// -1 asks for a fresh seed, as everywhere.
uint64_t read_seed(spec::Settings& settings) {
  const spec::Json seed = settings.any("seed");
  if (seed.is_null()) return 0;
  const std::optional<uint64_t> read =
      seed.is_number_integer() ? infer::seed_of(seed.dump()) : std::nullopt;
  if (!read)
    fail(ErrorKind::usage, settings.where(),
         "seed: {}; expected a whole number up to 2^64 - 1, or -1 for a new seed",
         seed.dump().substr(0, 60));
  return *read;
}

std::shared_ptr<const text::Constraint> read_constraint(spec::Settings& settings,
                                                        const text::Tokenizer* tokenizer) {
  const std::optional<std::string> gbnf = settings.text("grammar"),
                                   pattern = settings.text("regex");
  const spec::Json schema = settings.any("json_schema");
  const int given = (gbnf ? 1 : 0) + (pattern ? 1 : 0) + (schema.is_null() ? 0 : 1);
  if (given == 0) return nullptr;
  if (given > 1)
    fail(ErrorKind::usage, settings.where(),
         "more than one of grammar, regex and json_schema; expected one of them");
  if (tokenizer == nullptr)
    fail(ErrorKind::usage, settings.where(),
         "a grammar for a model without a tokenizer; expected one with a tokenizer");
  const text::Grammar language = gbnf      ? text::parse_gbnf(*gbnf, "grammar")
                                 : pattern ? text::regex_grammar(*pattern, "regex")
                                           : text::schema_grammar(schema, "json_schema").grammar;
  return std::make_shared<text::GrammarConstraint>(
      language, std::make_shared<const text::TokenTrie>(*tokenizer),
      gbnf      ? "grammar"
      : pattern ? "regex"
                : "json_schema");
}

void read_limits(spec::Settings& settings,
                 const infer::DecodingDefaults& defaults,
                 infer::DecodingOptions& out) {
  constexpr int64_t kAny = int64_t{1} << 40;
  const auto most = settings.whole("max_new_tokens", -1);
  if (most) {
    out.max_new_tokens = *most < 0 ? kAny : *most;
  } else {
    if (defaults.max_new_tokens) out.max_new_tokens = *defaults.max_new_tokens;
    if (defaults.max_length > 0) out.max_new_tokens = kAny;
    out.max_length = defaults.max_length;
  }
  const auto least = settings.whole("min_new_tokens", 0);
  out.min_new_tokens = least.value_or(defaults.min_new_tokens);
  if (!least) out.min_length = defaults.min_length;
  if (least && *least > out.max_new_tokens)
    fail(ErrorKind::usage, settings.where(),
         "min_new_tokens {} is more than max_new_tokens {}; expected at most as many", *least,
         out.max_new_tokens);
  out.stop_strings = settings.texts("stop");
  if (out.stop_strings.empty()) out.stop_strings = defaults.stop_strings;
  out.context = settings.whole("context", 1).value_or(0);
  out.shift = settings.flag("context_shift").value_or(false);
}

}  // namespace

Asked read_asked(std::string_view text, const infer::LoadedModel& loaded, infer::TextKind kind) {
  spec::Settings settings(text, kind == infer::TextKind::conversation ? "chat" : "generate");
  const infer::DecodingDefaults defaults = infer::decoding_defaults(loaded.generation, kind);
  const text::Tokenizer* const tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  Asked asked;
  infer::GenerateOptions& options = asked.options;
  read_sampling(settings, defaults, options.sampling);
  infer::take_bans(defaults, options);
  options.sampling.seed = read_seed(settings);
  read_limits(settings, defaults, options);
  if (kind == infer::TextKind::conversation) {
    asked.tools = settings.any("tools");
  } else {
    asked.add_special = settings.flag("add_special").value_or(true);
    asked.parse_special = settings.flag("parse_special").value_or(true);
  }
  options.constraint = read_constraint(settings, tokenizer);
  const bool goes_on = settings.flag("ignore_eos").value_or(false);
  settings.done();
  if (!goes_on) options.stop_ids = infer::eos_ids(loaded);
  if (options.constraint) return asked;
  if (loaded.model.spec().encoder && defaults.forced_begin)
    options.forced_begin = {*defaults.forced_begin};
  if (!goes_on && defaults.forced_end) {
    options.forced_end = defaults.forced_end;
    options.stop_ids.push_back(*defaults.forced_end);
  }
  return asked;
}

}  // namespace tessera::api
