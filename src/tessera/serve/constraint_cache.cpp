#include "tessera/serve/constraint_cache.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/serve/api_error.h"
#include "tessera/text/grammar/grammar_constraint.h"
#include "tessera/text/grammar/json_schema.h"
#include "tessera/text/grammar/regex_grammar.h"

namespace tessera::serve {
namespace {

constexpr size_t kKept = 16;

/// Errors in a grammar become ApiError 400 for its field.
template <class Make>
auto asked(const std::string& field, Make make) {
  try {
    return make();
  } catch (const Error& error) {
    const bool schema =
        std::string_view(error.what()).find("unsupported schema") != std::string_view::npos;
    refuse(field, error.what(), schema ? "unsupported_schema" : "invalid_constraint");
  }
}

text::Grammar of_schema(const Json& schema, const std::string& field) {
  return asked(field, [&] { return text::schema_grammar(schema, field).grammar; });
}

text::Grammar of_gbnf(const std::string& source, const std::string& field) {
  return asked(field, [&] { return text::parse_gbnf(source, field); });
}

const Json& member(const Json& object, const char* key, const std::string& field) {
  const auto found = object.find(key);
  if (found == object.end()) refuse(field, fmt::format("{} has no \"{}\"", field, key));
  return *found;
}

std::string string_of(const Json& value, const std::string& field) {
  if (!value.is_string()) refuse(field, field + " is no string");
  return value.get<std::string>();
}

text::Grammar of_response_format(const Json& format, std::vector<std::string>& ignored) {
  const std::string field = "response_format";
  const std::string type =
      format.is_object() ? string_of(member(format, "type", field), field) : "";
  // llama.cpp's clients send a schema with either type, next to it
  const bool beside = format.is_object() && format.contains("schema") &&
                      !format["schema"].is_null() && !format.contains("json_schema");
  if (beside && (type == "json_object" || type == "json_schema"))
    return of_schema(format["schema"], field + ".schema");
  if (type == "json_object") return of_schema({{"type", "object"}}, field);
  if (type == "json_schema") {
    const Json& named = member(format, "json_schema", field);
    if (!named.is_object()) refuse(field, "response_format.json_schema is no object");
    const Json& schema = member(named, "schema", field + ".json_schema");
    // with strict = false, keywords that are not supported are ignored
    const bool strict = named.value("strict", Json()) != false;
    return asked(field, [&] {
      text::SchemaGrammar made = text::schema_grammar(schema, field, strict);
      ignored = std::move(made.ignored);
      return std::move(made.grammar);
    });
  }
  refuse(field, "response_format.type: expected text, json_object or json_schema");
}

text::Grammar of_structured(const Json& outputs) {
  const std::string field = "structured_outputs";
  // clients send all members, of which one is not null
  std::string key;
  if (outputs.is_object())
    for (const auto& [name, value] : outputs.items())
      if (!value.is_null() && value != false) key = key.empty() ? name : "more than one";
  if (!outputs.is_object() || !outputs.contains(key))
    refuse(field, "structured_outputs: expected one of json, regex, choice and grammar");
  const Json& value = outputs[key];
  if (key == "json") {
    if (!value.is_string()) return of_schema(value, field);
    return of_schema(
        asked(field, [&] { return spec::parse_json(value.get<std::string>(), field); }), field);
  }
  if (key == "regex")
    return asked(field, [&] { return text::regex_grammar(string_of(value, field), field); });
  if (key == "grammar") return of_gbnf(string_of(value, field), field);
  if (key != "choice")
    refuse(field, "structured_outputs: expected one of json, regex, choice and grammar");
  std::vector<std::string> texts;
  if (value.is_array())
    for (const Json& one : value) texts.push_back(string_of(one, field));
  if (texts.empty()) refuse(field, "structured_outputs.choice: expected a list of strings");
  return asked(field, [&] { return text::choice_grammar(texts); });
}

std::string field_of(const GenerationBody& body) {
  return !body.grammar.empty()                ? "grammar"
         : !body.json_schema.is_null()        ? "json_schema"
         : !body.structured_outputs.is_null() ? "structured_outputs"
                                              : "response_format";
}

}  // namespace

text::Grammar language_of(const GenerationBody& body, std::vector<std::string>& ignored) {
  if (!body.grammar.empty()) return of_gbnf(body.grammar, "grammar");
  if (!body.json_schema.is_null()) return of_schema(body.json_schema, "json_schema");
  if (!body.structured_outputs.is_null()) return of_structured(body.structured_outputs);
  return of_response_format(body.response_format, ignored);
}

std::shared_ptr<const text::Constraint> ConstraintCache::of(
    const GenerationBody& body,
    const text::Tokenizer& tokenizer,
    const std::optional<Thoughts>& reasoning,
    std::vector<std::string>* ignored) {
  if (!body.constrained()) return nullptr;
  Json key =
      Json::array({body.grammar, body.json_schema, body.structured_outputs, body.response_format});
  if (reasoning) key.push_back({reasoning->tags.open, reasoning->tags.close, reasoning->open});
  const auto make = [&](std::vector<std::string>& not_held) {
    text::Grammar grammar = language_of(body, not_held);
    if (!reasoning) return grammar;
    const int32_t answer = grammar.fresh_rule("answer");
    grammar.define(answer, text::after_reasoning(grammar, grammar.call(grammar.root()),
                                                 reasoning->tags, reasoning->open, &tokenizer));
    grammar.set_root(answer);
    return grammar;
  };
  return cached(key.dump(), field_of(body), tokenizer, make, ignored);
}

std::shared_ptr<const text::Constraint> ConstraintCache::of_calls(
    const text::CallGrammarOptions& options, const text::Tokenizer& tokenizer) {
  return cached(
      Json::array({options.tools, options.required, options.parallel, options.thinking,
                   options.reasoning.has_value()})
          .dump(),
      "tools", tokenizer,
      [&](std::vector<std::string>&) { return text::call_grammar(options, "tools"); }, nullptr);
}

std::shared_ptr<const text::Constraint> ConstraintCache::cached(const std::string& key,
                                                                const std::string& field,
                                                                const text::Tokenizer& tokenizer,
                                                                const Make& make,
                                                                std::vector<std::string>* ignored) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& one) { return one.key == key; });
  if (found != entries_.end()) {
    std::rotate(entries_.begin(), found, found + 1);
  } else {
    if (!tokens_) tokens_ = std::make_shared<const text::TokenTrie>(tokenizer);
    Entry one{.key = key};
    one.constraint = asked(field, [&] {
      return std::make_shared<const text::GrammarConstraint>(make(one.ignored), tokens_, field);
    });
    entries_.push_front(std::move(one));
    if (entries_.size() > kKept) entries_.pop_back();
  }
  if (ignored != nullptr) *ignored = entries_.front().ignored;
  return entries_.front().constraint;
}

}  // namespace tessera::serve
