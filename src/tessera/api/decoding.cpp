#include "tessera/api/decoding.h"

#include <cmath>
#include <set>

#include "tessera/spec/settings.h"
#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/infer/sampling/seed.h"
#include "tessera/text/grammar/grammar_constraint.h"
#include "tessera/text/grammar/json_schema.h"
#include "tessera/text/grammar/regex_grammar.h"

namespace tessera::api {
namespace {

using infer::decoding_field;

std::optional<int64_t> whole(spec::Settings& settings, const infer::DecodingField& option) {
  return settings.whole(option.name, static_cast<int64_t>(option.least));
}

/// Names of the settings that a call has.
using Given = std::set<std::string_view>;

/// Sampling numbers that are given.
void read_sampling(spec::Settings& settings, Given& given, infer::SamplingOptions& out) {
  for (const infer::DecodingField& field : infer::sampling_fields()) {
    const auto value =
        settings.number(field.name, field.least, field.most, field.expected, field.above);
    if (!value) continue;
    if (field.whole() && *value != std::floor(*value))
      fail(ErrorKind::usage, settings.where(), "{}: {}; expected a whole number", field.name,
           *value);
    field.set(out, *value);
    given.insert(field.name);
  }
  out.bad_words = settings.texts("bad_words");
}

void check_sampling(const spec::Settings& settings,
                    const Given& given,
                    const infer::SamplingOptions& options) {
  options.check();
  const std::string conflict = infer::conflict_among(
      options, [&](const infer::DecodingField& field) { return given.contains(field.name); });
  if (!conflict.empty()) fail(ErrorKind::usage, settings.where(), "{}", conflict);
}

/// -1 requests a random seed, as everywhere.
uint64_t read_seed(spec::Settings& settings) {
  const spec::Json seed = settings.any("seed");
  if (seed.is_null()) return 0;
  const std::optional<uint64_t> read =
      seed.is_number_integer() ? infer::seed_of(seed.dump()) : std::nullopt;
  if (!read)
    fail(ErrorKind::usage, settings.where(), "seed: {}; expected {}", seed.dump().substr(0, 60),
         decoding_field("seed").expected);
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

/// Limits of length and stop strings that are given.
void read_limits(spec::Settings& settings, Given& given, infer::DecodingOptions& out) {
  const auto most = whole(settings, decoding_field("max_new_tokens")),
             least = whole(settings, decoding_field("min_new_tokens"));
  out.stop_strings = settings.texts("stop");
  if (most) given.insert("max_new_tokens");
  if (least) given.insert("min_new_tokens");
  if (!out.stop_strings.empty()) given.insert("stop");
  if (most) out.max_new_tokens = *most < 0 ? infer::kAnyLength : *most;
  if (least) out.min_new_tokens = *least;
  out.context = whole(settings, decoding_field("context")).value_or(0);
  out.shift = settings.flag("context_shift").value_or(false);
}

void check_limits(const spec::Settings& settings,
                  const Given& given,
                  const infer::DecodingOptions& options) {
  if (given.contains("min_new_tokens") && options.min_new_tokens > options.max_new_tokens)
    fail(ErrorKind::usage, settings.where(),
         "min_new_tokens {} is more than max_new_tokens {}; expected at most as many",
         options.min_new_tokens, options.max_new_tokens);
}

}  // namespace

DecodingSettings read_decoding_settings(std::string_view text,
                                        const infer::LoadedModel& loaded,
                                        infer::TextKind kind) {
  spec::Settings settings(text, kind == infer::TextKind::conversation ? "chat" : "generate");
  const infer::DecodingDefaults defaults = infer::decoding_defaults(loaded.generation, kind);
  const text::Tokenizer* const tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  DecodingSettings asked;
  infer::GenerateOptions& options = asked.options;
  Given given;
  read_sampling(settings, given, options.sampling);
  read_limits(settings, given, options);
  infer::take_defaults(
      defaults, [&](std::string_view name) { return given.contains(name); }, options);
  check_sampling(settings, given, options.sampling);
  check_limits(settings, given, options);
  options.sampling.seed = read_seed(settings);
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
  infer::take_forced_tokens(defaults, loaded.model.spec().encoder != nullptr, !goes_on, options);
  return asked;
}

}  // namespace tessera::api
