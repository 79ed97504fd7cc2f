// Bodies of generation routes.
#include "tessera/serve/body_values.h"

#include <charconv>
#include <cmath>
#include <set>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

constexpr size_t kMostStops = 16, kMostStopBytes = 256;
constexpr size_t kMostPrompts = 64;
constexpr auto kMostChoices = static_cast<int64_t>(infer::decoding_field("choices").asked_most);
constexpr size_t kMostVariables = 16, kMostBiases = 1024, kMostBadWords = 128;
constexpr size_t kMostSequence = 1024;  // max. tokens of a biased sequence

/// {"50256": -100} or [[50256, false]]; of texts, all of their tokens.
void read_biases(GenerationBody& body, const Json& value, const std::string& name) {
  if ((!value.is_object() && !value.is_array()) || value.size() > kMostBiases)
    refuse(name, fmt::format("{} is no list of at most {} biases", name, kMostBiases));
  const auto add = [&](const Json& token, const Json& bias) {
    constexpr const infer::DecodingField& option = infer::decoding_field("logit_bias");
    const double by =
        bias == false ? -INFINITY : number_of(bias, name, option.asked_least, option.asked_most);
    if (token.is_string())
      body.text_bias.emplace_back(text_of(token, name, kMostStopBytes), by);
    else
      body.logit_bias.emplace_back(integer_of(token, name, 0, std::numeric_limits<int32_t>::max()),
                                   by);
  };
  if (value.is_array()) {
    for (const Json& pair : value) {
      if (!pair.is_array() || pair.size() != 2) refuse(name, name + ": expected [[id, bias], ...]");
      add(pair[0], pair[1]);
    }
    return;
  }
  for (const auto& [key, bias] : value.items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool number = error == std::errc() && end == key.data() + key.size();
    add(number ? Json(id) : Json(key), bias);
  }
}

/// [[[ids], bias or false], ...], as generation_config.json has it.
void read_sequence_biases(GenerationBody& body, const Json& value, const std::string& name) {
  if (!value.is_array() || value.size() > kMostBiases)
    refuse(name, fmt::format("{} is no list of at most {} biases", name, kMostBiases));
  constexpr const infer::DecodingField& option = infer::decoding_field("sequence_bias");
  for (const Json& pair : value) {
    if (!pair.is_array() || pair.size() != 2)
      refuse(name, name + ": expected [[[id, ...], bias], ...]");
    std::vector<int64_t> ids = ids_of(pair[0], name, kMostSequence);
    if (ids.empty()) refuse(name, name + " has a sequence without a token; expected at least one");
    const double by = pair[1] == false
                          ? -INFINITY
                          : number_of(pair[1], name, option.asked_least, option.asked_most);
    body.sequence_bias.emplace_back(std::move(ids), by);
  }
}

Json object_schema() {
  return {{"type", "object"}};
}

/// The sampling options as fields.
template <class Body>
void add_sampling(Fields<Body>& fields) {
  for (const infer::DecodingField& field : infer::sampling_fields()) {
    Json schema = field.whole() ? integer_schema(field)
                                : Json{{"type", "number"},
                                       {"minimum", field.asked_least},
                                       {"maximum", field.asked_most}};
    add_option(fields, field, std::move(schema), "",
               [&field](Body& body, const Json& value, const std::string& name) {
                 const double read =
                     field.whole() ? static_cast<double>(asked_integer(field, value, name))
                                   : number_of(value, name, field.asked_least, field.asked_most);
                 body.sampling.emplace_back(&field, read);
               });
  }
  add_option(fields, infer::decoding_field("dry_sequence_breakers"),
             {{"type", "array"}, {"items", {{"type", "string"}}}}, "; up to 32 of 1 to 32 bytes",
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_array() && value.empty()) {
                 body.dry_sequence_breakers.emplace();
                 return;
               }
               body.dry_sequence_breakers = texts_of(value, name, 32);
               for (const std::string& text : *body.dry_sequence_breakers)
                 if (text.empty() || text.size() > 32)
                   refuse(name, fmt::format("{} holds a text of {} bytes; expected 1 to 32", name,
                                            text.size()));
             });
}

template <class Body>
void add_samplers(Fields<Body>& fields) {
  const std::vector<std::string> names(infer::sampler_names().begin(),
                                       infer::sampler_names().end());
  add_option(fields, infer::decoding_field("samplers"),
             {{"type", "array"}, {"items", {{"enum", names}}}}, "; default: all, as listed",
             [](Body& body, const Json& value, const std::string& name) {
               std::vector<std::string> asked;
               if (!value.is_array() || !value.empty()) asked = texts_of(value, name, 64);
               try {
                 body.samplers = infer::samplers_named(asked);
               } catch (const Error& error) {
                 refuse(name, error.what());
               }
             });
}

/// Fields that clients of OpenAI's API, llama.cpp's server and vLLM send without need: their own
/// defaults, which have no effect here, and hints.
template <class Body>
void add_inert(Fields<Body>& fields) {
  using G = GenerationBody;
  const Json none = Json::array();
  fields.integer("best_of", &G::best_of, 1, kMostChoices,
                 "must equal n: all completions are returned");
  fields.inert("store", {false}, "nothing is stored")
      .inert("service_tier", {"auto", "default"}, "not used")
      .inert("modalities", {Json::array({"text"})}, "text alone")
      .hint("metadata", "object", "not used")
      .hint("safety_identifier", "string", "not used")
      .hint("prompt_cache_key", "string", "not used")
      .hint("prompt_cache_retention", "string", "not used")
      .inert("verbosity", {"medium"}, "not used")
      .inert("functions", {none}, "the API's older form of tools")
      .inert("function_call", {"none", "auto"}, "the API's older form of tool_choice")
      .inert("audio", {}, "text alone")
      .inert("web_search_options", {}, "no search");
  // llama.cpp
  fields.inert("id_slot", {-1}, "requests have no slots")
      .inert("slot_id", {-1}, "requests have no slots")
      .inert("n_keep", {0}, "a text ends at the end of the context")
      .inert("n_discard", {0}, "a text ends at the end of the context")
      .inert("n_indent", {0}, "lines are not indented")
      .inert("n_cache_reuse", {0}, "only common prefixes are shared")
      .inert("min_keep", {0, 1}, "samplers leave one token at least")
      .hint("t_max_prompt_ms", "number", "not used, as in llama.cpp's server; see timeout_ms")
      .inert("image_data", {none}, "text alone")
      .inert("lora", {none}, "an adapter is a model of its own name")
      .inert("response_fields", {none}, "answers have all fields")
      .inert("return_progress", {false}, "not reported")
      .inert("reasoning_control", {false}, "use reasoning_budget")
      .inert("penalize_nl", {true}, "penalties are of all tokens alike")
      .inert("tfs_z", {1}, "no such sampler")
      .inert("adaptive_target", {-1}, "no such sampler")
      .hint("adaptive_decay", "number", "no such sampler")
      .inert("backend_sampling", {false}, "not used")
      .inert("grammar_lazy", {false}, "a grammar constrains the whole output")
      .inert("grammar_triggers", {none}, "a grammar constrains the whole output")
      .inert("preserved_tokens", {none}, "not used")
      .hint("speculative.n_max", "number", "the server chooses; no text depends on it")
      .hint("speculative.n_min", "number", "the server chooses; no text depends on it")
      .hint("speculative.p_min", "number", "the server chooses; no text depends on it");
  // vLLM
  fields.inert("use_beam_search", {false}, "beams of 2 or more search")
      .inert("skip_special_tokens", {true}, "special tokens are no text")
      .inert("spaces_between_special_tokens", {true, false}, "special tokens are no text")
      .inert("detokenize", {true}, "answers are text")
      .inert("include_reasoning", {true}, "use reasoning_format")
      .inert("return_tokens_as_token_ids", {false}, "return_token_ids returns them")
      .inert("logits_processors", {none}, "not supported")
      .inert("watermarking", {false}, "not supported")
      .inert("truncate_prompt_tokens", {}, "prompts are never truncated")
      .inert("prompt_logprobs", {}, "echo with logprobs returns them")
      .hint("guided_decoding_backend", "string", "not used")
      .hint("request_id", "string", "the header X-Request-Id names a request");
}

template <class Body>
void add_generation(Fields<Body>& fields) {
  using G = GenerationBody;
  using infer::decoding_field;
  add_model(fields);
  const infer::DecodingField& longest = decoding_field("max_new_tokens");
  add_option(fields, longest, integer_schema(longest),
             ", up to --max-tokens. Default: 16 of completions, -1 of chats",
             [&longest](Body& body, const Json& value, const std::string& name) {
               const int64_t tokens = asked_integer(longest, value, name);
               body.unbounded = tokens == -1;
               if (!body.unbounded) body.max_tokens = tokens;
             });
  add_sampling(fields);
  add_samplers(fields);
  add_integer(fields, decoding_field("min_new_tokens"), &G::min_tokens);
  const infer::DecodingField& bias = decoding_field("logit_bias");
  add_option(
      fields, bias, {{"type", "object"}},
      fmt::format(
          ": {{\"token id\": {} to {}}}, or [[id, bias or false], ...]; a text instead of an "
          "id means its tokens",
          bias.asked_least, bias.asked_most),
      [](Body& body, const Json& value, const std::string& name) {
        read_biases(body, value, name);
      });
  add_option(fields, decoding_field("sequence_bias"),
             {{"type", "array"}, {"items", {{"type", "array"}}}},
             ": [[[token ids], bias], ...], as in generation_config.json; false = never",
             [](Body& body, const Json& value, const std::string& name) {
               read_sequence_biases(body, value, name);
             });
  add_option(fields, decoding_field("allowed_token_ids"),
             {{"type", "array"}, {"items", {{"type", "integer"}}}}, "",
             [](Body& body, const Json& value, const std::string& name) {
               body.allowed_token_ids = ids_of(value, name, kMostText);
               if (body.allowed_token_ids->empty())
                 refuse(name, name + " is empty; expected the id of a token at least");
             });
  add_option(fields, decoding_field("bad_words"),
             {{"type", "array"}, {"items", {{"type", "string"}}}, {"maxItems", kMostBadWords}}, "",
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_array() && value.empty()) return;
               body.bad_words = texts_of(value, name, kMostBadWords);
               for (const std::string& word : body.bad_words)
                 if (word.empty() || word.size() > kMostStopBytes)
                   refuse(name, fmt::format("{} holds a text of {} bytes; expected 1 to {}", name,
                                            word.size(), kMostStopBytes));
             });
  add_option(fields, decoding_field("seed"),
             {{"type", "integer"}, {"minimum", -1}, {"maximum", kMostSeed}},
             " each time, as without it. Every response has its seed, to repeat it",
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_number_unsigned() ||
                   (value.is_number_integer() && value.get<int64_t>() >= 0)) {
                 body.seed = value.get<uint64_t>();
                 return;
               }
               if (value != Json(-1))
                 refuse(name, fmt::format("{} is {}; expected {}", name, value.dump().substr(0, 60),
                                          decoding_field("seed").expected));
             });
  add_option(fields, decoding_field("stop"),
             {{"oneOf",
               {{{"type", "string"}},
                {{"type", "array"}, {"items", {{"type", "string"}}}, {"maxItems", kMostStops}}}}},
             fmt::format("; one, or a list of up to {}", kMostStops),
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_array() && value.empty()) return;
               if (value == "") return;  // sent by forms of clients
               body.stop = texts_of(value, name, kMostStops);
               for (const std::string& stop : body.stop)
                 if (stop.empty() || stop.size() > kMostStopBytes)
                   refuse(name, fmt::format("{} holds a text of {} bytes; expected 1 to {}", name,
                                            stop.size(), kMostStopBytes));
             });
  add_option(fields, decoding_field("stop_token_ids"),
             {{"type", "array"}, {"items", {{"type", "integer"}}}}, "",
             [](Body& body, const Json& value, const std::string& name) {
               body.stop_token_ids = ids_of(value, name, 64);
             });
  add_flag(fields, decoding_field("include_stop_str_in_output"), &G::keep_stop);
  add_flag(fields, decoding_field("ignore_eos"), &G::ignore_eos);
  add_integer(fields, decoding_field("choices"), &G::n,
              "; each except the first has a seed derived from `seed`");
  add_search(fields);
  fields.flag("stream", &G::stream, "streaming (text/event-stream)");
  fields.add(
      "stream_options", object_schema(),
      "{\"include_usage\": true}: one more event with the counts of tokens",
      [](Body& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
        if (!value.is_object()) refuse(name, name + " is no object");
        read_members(value, name,
                     {"include_usage", "include_obfuscation", "continuous_usage_stats"}, unknown,
                     [&](const std::string& key, const Json& option, const std::string& where) {
                       if (key == "include_usage")
                         body.include_usage = flag_of(option, where);
                       else if (flag_of(option, where))
                         refuse(where, where + " is not supported; expected include_usage",
                                "unsupported_parameter");
                     });
      });
  fields
      .integer("timeout_ms", &G::timeout_ms, 1, int64_t{1} << 40,
               "request timeout, ms; at most the server's --deadline")
      .integer("t_max_predict_ms", &G::line_limit_ms, -1, int64_t{1} << 40,
               "end at the next line break once so many ms have passed since the first new token; "
               "0 = off")
      .flag("timings_per_token", &G::timings_per_token,
            "timings in every event of a stream, else in the last alone")
      .add("prediction", object_schema(),
           "predicted output, {\"type\": \"content\", \"content\": ...}: source of draft tokens "
           "with --lookup",
           [](Body& body, const Json& value, const std::string& name,
              const UnknownMembers& unknown) {
             if (!value.is_object() || value.value("type", Json()) != "content" ||
                 !value.contains("content"))
               refuse(name, name + ": expected {\"type\": \"content\", \"content\": ...}");
             body.prediction = content_of(value["content"], name + ".content", unknown);
             read_members(value, name, {"type", "content"}, unknown,
                          [](const std::string&, const Json&, const std::string&) {});
           })
      .flag("return_token_ids", &G::return_token_ids, "choices with \"token_ids\"")
      .alias("return_tokens")
      .integer("priority", &G::priority, -10, 10,
               "priority, lower first, if the server has --priorities")
      .flag("post_sampling_probs", &G::post_sampling_probs,
            "logprobs after penalties, temperature and filters")
      .flag("cache_prompt", &G::cache_prompt, "use the prefix cache, shared with other requests")
      .text("cache_salt", &G::cache_salt, 1024,
            "share the prefix cache with requests of this salt only");
  const auto keep = [&](std::string name, Json G::*member, std::string doc) {
    fields.add(std::move(name), object_schema(), std::move(doc),
               [member](Body& body, const Json& value, const std::string& said) {
                 if (!value.is_object()) refuse(said, said + " is no object");
                 body.*member = value;
               });
  };
  keep("response_format", &G::response_format,
       "{\"type\": \"text\" | \"json_object\" | \"json_schema\", ...}: what the text must be");
  keep(decoding_field("json_schema").request_name(), &G::json_schema,
       decoding_field("json_schema").doc);
  keep("structured_outputs", &G::structured_outputs,
       "{json | regex | choice | grammar}: what the text must be");
  fields.add(
      "retrieve", {{"anyOf", {{{"type", "boolean"}}, {{"type", "object"}}}}},
      "retrieval-augmented generation with the server's index: true, false, or {\"passages\": "
      "maximum number, \"tokens\": maximum in total}",
      [](Body& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
        body.retrieve = !value.is_boolean() || value.get<bool>();
        if (value.is_boolean()) return;
        if (!value.is_object())
          refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                           "; expected true, false or {\"passages\", \"tokens\"}");
        read_members(value, name, {"passages", "tokens"}, unknown,
                     [&](const std::string& key, const Json& number, const std::string& where) {
                       if (key == "passages")
                         body.passages = integer_of(number, where, 1, 256);
                       else
                         body.passage_tokens = integer_of(number, where, 1, kMostTokens);
                     });
      });
  fields.text(decoding_field("grammar").request_name(), &G::grammar, size_t{256} << 10,
              decoding_field("grammar").doc);
  for (const char* kind : {"json", "regex", "choice", "grammar"})
    fields.add(std::string("guided_") + kind, Json::object(),
               fmt::format("another name of structured_outputs.{}", kind),
               [kind](Body& body, const Json& value, const std::string& name) {
                 if (!body.guided.is_null())
                   refuse(name, fmt::format("{} with guided_{}; leave one of them out", name,
                                            body.guided.begin().key()));
                 body.guided = Json{{kind, value}};
               });
  add_inert(fields);
}

/// Merges fields with several names.
void settle_names(GenerationBody& body) {
  if (!body.guided.is_null() && !body.structured_outputs.is_null())
    refuse("structured_outputs",
           fmt::format("structured_outputs with guided_{}; leave one of them out",
                       body.guided.begin().key()));
  if (!body.guided.is_null()) body.structured_outputs = body.guided;
  if (body.n_probs == 0) return;
  if (body.top_logprobs.value_or(body.n_probs) != body.n_probs)
    refuse("n_probs", "n_probs with another number of logprobs; leave one of them out");
  body.top_logprobs = body.n_probs;
}

void check_generation(const GenerationBody& body, const Json& json) {
  if (body.max_tokens && body.min_tokens > *body.max_tokens)
    refuse("min_tokens", fmt::format("min_tokens is {}, max_tokens is {}; expected at most as many",
                                     body.min_tokens, *body.max_tokens));
  if (json.contains("stream_options") && !json["stream_options"].is_null() && !body.stream)
    refuse("stream_options", "stream_options without stream; expected \"stream\": true");
  int constraints = 0;
  for (const Json* constraint :
       {&body.response_format, &body.json_schema, &body.structured_outputs})
    constraints += constraint->is_null() ? 0 : 1;
  if (constraints + (body.grammar.empty() ? 0 : 1) > 1)
    refuse("response_format",
           "more than one of response_format, json_schema, structured_outputs and grammar; "
           "expected one at most");
  if (body.best_of != 1 && body.best_of != body.n)
    refuse("best_of",
           fmt::format("best_of is {}, n is {}; expected the same", body.best_of, body.n),
           "unsupported_parameter");
  if (body.post_sampling_probs && !body.top_logprobs)
    refuse("post_sampling_probs", "post_sampling_probs without logprobs; expected both");
  body.check_search();
  if (!body.searches()) return;
  const auto beside = [](bool given, const char* name) {
    if (given)
      refuse(name, std::string(name) + " is not available with beam search; leave it or beams out");
  };
  beside(body.stream, "stream");
  beside(body.sampled("temperature").value_or(0) > 0, "temperature");
  beside(body.n > 1, "n");
  beside(body.line_limit_ms > 0, "t_max_predict_ms");
  beside(body.constrained(), "response_format");
  beside(body.top_logprobs.has_value(), "logprobs");
}

// --- chat

Json without_nulls(const Json& object) {
  Json out = Json::object();
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) out[key] = value;
  return out;
}

Json tools_of(const Json& value, const std::string& name) {
  if (!value.is_array() || value.size() > kMostTools)
    refuse(name, fmt::format("{} is no list of at most {} tools", name, kMostTools));
  Json tools = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& tool = value[i];
    if (!tool.is_object() || tool.value("type", Json("function")) != "function" ||
        !tool.contains("function") || !tool["function"].is_object())
      refuse(which, which + " is no function; expected {\"type\": \"function\", \"function\": ..}");
    const Json& function = tool["function"];
    const std::string called = function.contains("name")
                                   ? text_of(function["name"], which + ".function.name", kMostName)
                                   : "";
    if (called.empty() || called.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                                                   "uvwxyz0123456789_-") != std::string::npos)
      refuse(which + ".function.name",
             which + ".function.name: expected 1 to 64 letters, digits, _ and -");
    if (function.contains("parameters") && !function["parameters"].is_object() &&
        !function["parameters"].is_null())
      refuse(which + ".function.parameters", which + ".function.parameters is no JSON schema");
    tools.push_back(without_nulls(tool));
    tools.back()["type"] = "function";
    tools.back()["function"] = without_nulls(function);
  }
  return tools.empty() ? Json(nullptr) : tools;
}

/// {"type": "function", "function": {"name"}}, or {"type": "allowed_tools", "allowed_tools":
/// {"mode", "tools"}}, the latter also without its inner object.
Json tool_choice_of(const Json& value, const std::string& name) {
  if (value == "none" || value == "auto" || value == "required") return value;
  if (!value.is_object()) refuse(name, name + ": expected none, auto, required or a function");
  if (value.value("type", Json()) != "allowed_tools") return value;
  const Json allowed = value.value("allowed_tools", value);
  if (!allowed.is_object())
    refuse(name, fmt::format("{}.allowed_tools is {}; expected an object of mode and tools", name,
                             spec::kind_of(allowed)));
  const Json mode = allowed.value("mode", Json("auto"));
  if (mode != "auto" && mode != "required") refuse(name, name + ".mode: expected auto or required");
  if (!allowed.value("tools", Json()).is_array())
    refuse(name, name + ".tools is no list of functions");
  return {{"type", "allowed_tools"}, {"mode", mode}, {"tools", allowed["tools"]}};
}

/// Template variables that the server sets itself.
bool is_reserved(const std::string& name) {
  static const std::set<std::string> kReserved = {"messages",
                                                  "tools",
                                                  "documents",
                                                  "add_generation_prompt",
                                                  "continue_final_message",
                                                  "bos_token",
                                                  "eos_token",
                                                  "pad_token",
                                                  "unk_token"};
  return kReserved.contains(name);
}

}  // namespace

bool GenerationBody::constrained() const {
  const bool text = response_format.is_object() && response_format.value("type", Json()) == "text";
  return !(response_format.is_null() || text) || !json_schema.is_null() ||
         !structured_outputs.is_null() || !grammar.empty();
}

Json parse_body(std::string_view text, const Limits& limits) {
  try {
    return spec::parse_json(text, "body",
                            {.max_bytes = limits.body_bytes,
                             .max_depth = limits.json_depth,
                             .max_values = limits.json_values});
  } catch (const Error& error) {
    throw ApiError(400, "invalid_json", std::string(error.what()));
  }
}

std::optional<double> GenerationBody::sampled(std::string_view name) const {
  for (const auto& [field, value] : sampling)
    if (field->name == name) return value;
  return std::nullopt;
}

namespace {

constexpr auto kMostLogprobs = static_cast<int64_t>(infer::decoding_field("logprobs").asked_most);

/// llama.cpp's: 0 = none, where 0 of OpenAI's `logprobs` are those of the tokens that were chosen.
template <class Body>
void add_n_probs(Fields<Body>& fields) {
  fields.add("n_probs", {{"type", "integer"}, {"minimum", 0}, {"maximum", kMostLogprobs}},
             "log-probabilities of the N most likely tokens; 0 = none",
             [](Body& body, const Json& value, const std::string& name) {
               body.n_probs = integer_of(value, name, 0, kMostLogprobs);
             });
}

template <class Body>
void add_logprobs(Fields<Body>& fields) {
  add_integer(fields, infer::decoding_field("logprobs"), &Body::top_logprobs);
  add_n_probs(fields);
}

}  // namespace

const Fields<CompletionBody>& completion_fields() {
  static const Fields<CompletionBody> fields = [] {
    using C = CompletionBody;
    Fields<C> f;
    f.add("prompt",
          {{"oneOf", {{{"type", "string"}}, {{"type", "array"}, {"maxItems", kMostPrompts}}}}},
          "prompt: a text, token ids, or a list of either; for an encoder-decoder the source",
          [](C& body, const Json& value, const std::string& name) {
            body.prompts = prompts_of(value, name, kMostPrompts);
          });
    f.required();
    add_generation(f);
    f.flag("echo", &C::echo, "return the prompt in front of the completion");
    f.add("parse_special", {{"type", "boolean"}, {"default", true}},
          "parse special tokens in the prompt; off with retrieve and suffix",
          [](C& body, const Json& value, const std::string& name) {
            body.parse_special = flag_of(value, name);
          });
    f.text("suffix", &C::suffix, kMostText, "text after the completion (fill-in-the-middle models)")
        .inert("add_special_tokens", {true}, "use parse_special or token ids");
    add_logprobs(f);
    return f;
  }();
  return fields;
}

const Fields<InfillBody>& infill_fields() {
  static const Fields<InfillBody> fields = [] {
    using I = InfillBody;
    Fields<I> f;
    f.text("input_prefix", &I::prefix, kMostText, "text before the completion")
        .text("input_suffix", &I::suffix, kMostText, "text after the completion")
        .text("prompt", &I::prompt, kMostText, "beginning of the completion");
    f.add("input_extra", {{"type", "array"}, {"maxItems", kMostPrompts}},
          "other files: {\"filename\", \"text\"}",
          [](I& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
            if (!value.is_array() || value.size() > kMostPrompts)
              refuse(name, fmt::format("{} is no list of at most {} files", name, kMostPrompts));
            for (size_t i = 0; i < value.size(); ++i) {
              const std::string which = fmt::format("{}[{}]", name, i);
              if (!value[i].is_object() || !value[i].contains("text"))
                refuse(which, which + " is no {\"filename\", \"text\"}");
              InfillBody::File file;
              read_members(value[i], which, {"filename", "text", "time"}, unknown,
                           [&](const std::string& key, const Json& part, const std::string& where) {
                             if (key == "text") file.text = text_of(part, where, kMostText);
                             if (key == "filename") file.name = text_of(part, where, 4096);
                           });
              body.files.push_back(std::move(file));
            }
          });
    add_generation(f);
    add_logprobs(f);
    return f;
  }();
  return fields;
}

const Fields<ChatBody>& chat_fields() {
  static const Fields<ChatBody> fields = [] {
    using C = ChatBody;
    Fields<C> f;
    f.add("messages", {{"type", "array"}, {"minItems", 1}, {"maxItems", kMostMessages}},
          "the conversation: {\"role\", \"content\"} of system, developer, user, assistant, tool",
          [](C& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
            body.messages = messages_of(value, name, unknown);
          });
    f.required();
    add_generation(f);
    f.flag("logprobs", &C::logprobs, "log-probabilities of output tokens")
        .integer("top_logprobs", &C::top_logprobs, 0, kMostLogprobs,
                 "number of most likely tokens with log-probabilities")
        .flag("continue_final_message", &C::continue_final_message,
              "continue the last message; default: if it is the assistant's")
        .flag("add_generation_prompt", &C::add_generation_prompt,
              "begin an answer; default: unless the last message is continued");
    f.add("tools", {{"type", "array"}, {"items", {{"type", "object"}}}, {"maxItems", kMostTools}},
          "functions that may be called", [](C& body, const Json& value, const std::string& name) {
            body.tools = tools_of(value, name);
          });
    f.add("tool_choice",
          {{"anyOf", {{{"enum", {"none", "auto", "required"}}}, {{"type", "object"}}}}},
          "none, auto, required, {\"type\": \"function\", ...}, or {\"type\": \"allowed_tools\", "
          "...}",
          [](C& body, const Json& value, const std::string& name) {
            body.tool_choice = tool_choice_of(value, name);
          });
    f.flag("parallel_tool_calls", &C::parallel_tool_calls,
           "the model may call several functions in one answer");
    f.add("chat_template_kwargs", object_schema(), "variables of the template, at most 16",
          [](C& body, const Json& value, const std::string& name) {
            if (!value.is_object() || value.size() > kMostVariables)
              refuse(name, name + " is no object of at most 16 variables");
            for (const auto& [key, variable] : value.items()) {
              if (is_reserved(key)) refuse(name, name + " has a reserved variable name");
              body.template_variables[key] = variable;
            }
          });
    f.text("chat_template", &C::chat_template, size_t{256} << 10,
           "Jinja chat template in place of the model's, if the server allows it "
           "(--request-templates)");
    f.add("reasoning_effort", {{"type", "string"}, {"maxLength", 64}},
          "a variable of the chat template: low, medium or high, as the model knows",
          [](C& body, const Json& value, const std::string& name) {
            body.template_variables["reasoning_effort"] = text_of(value, name, 64);
          });
    f.add("documents", {{"type", "array"}, {"items", {{"type", "object"}}}},
          "a variable of the template", [](C& body, const Json& value, const std::string& name) {
            if (!value.is_array()) refuse(name, name + " is no list");
            body.template_variables["documents"] = value;
          });
    f.integer("reasoning_budget", &C::reasoning_budget, -1, kMostTokens,
              "maximum tokens of reasoning before the answer; -1 = no limit")
        .alias("thinking_token_budget");
    f.add("reasoning", {{"anyOf", Json::array({object_schema()})}},
          "{\"effort\"}: as reasoning_effort",
          [](C& body, const Json& value, const std::string& name, const UnknownMembers& unknown) {
            if (!value.is_object()) refuse(name, name + " is no object");
            read_members(value, name, {"effort"}, unknown,
                         [&](const std::string&, const Json& effort, const std::string& where) {
                           body.template_variables["reasoning_effort"] = text_of(effort, where, 64);
                         });
          });
    f.add("reasoning_format", {{"enum", {"auto", "deepseek", "none"}}, {"default", "auto"}},
          "auto, deepseek: reasoning is \"reasoning_content\"; none: it is part of content",
          [](C& body, const Json& value, const std::string& name) {
            if (value != "auto" && value != "deepseek" && value != "none")
              refuse(name, name + ": expected auto, deepseek or none");
            body.split_reasoning = value != "none";
          });
    f.inert("echo", {false}, "of completions")
        .inert("add_special_tokens", {false}, "the template writes them")
        .inert("reasoning_in_content", {false}, "use reasoning_format")
        .inert("thinking_forced_open", {false}, "set by the template")
        .inert("parse_tool_calls", {true}, "calls are read where there are tools")
        .inert("generation_prompt", {""}, "the template writes it");
    add_n_probs(f);
    return f;
  }();
  return fields;
}

CompletionBody read_completion(const Json& json, std::vector<std::string>* ignored) {
  auto body = completion_fields().read(json, ignored);
  settle_names(body);
  check_generation(body, json);
  if (body.echo && body.searches()) refuse("echo", "echo is not available with beams");
  if (body.echo && body.retrieve.value_or(false))
    refuse("echo", "echo is not available with retrieve");
  if (!body.suffix.empty() && (body.echo || body.retrieve.value_or(false)))
    refuse("suffix", "suffix is not available with echo or retrieve");
  if (body.parse_special.value_or(false) && body.retrieve.value_or(false))
    refuse("parse_special",
           "parse_special is not available with retrieve: passages could contain special tokens");
  if (body.parse_special.value_or(false) && !body.suffix.empty())
    refuse("parse_special",
           "parse_special is not available with suffix: the texts around the middle are plain");
  return body;
}

InfillBody read_infill(const Json& json, std::vector<std::string>* ignored) {
  InfillBody body = infill_fields().read(json, ignored);
  settle_names(body);
  check_generation(body, json);
  if (body.prefix.empty() && body.suffix.empty())
    refuse("input_prefix", "expected input_prefix, input_suffix or both", "missing_parameter");
  if (body.retrieve.value_or(false)) refuse("retrieve", "retrieve is not available for infill");
  return body;
}

ChatBody read_chat(const Json& json, std::vector<std::string>* ignored) {
  auto body = chat_fields().read(json, ignored);
  if (body.max_tokens && *body.max_tokens < 1)
    refuse("max_completion_tokens", "max_completion_tokens is 0; expected 1 or more");
  if (body.top_logprobs.value_or(0) > 0 && !body.logprobs)
    refuse("top_logprobs", "top_logprobs without logprobs; expected \"logprobs\": true");
  if (body.logprobs)
    body.top_logprobs = body.top_logprobs.value_or(body.n_probs);
  else
    body.top_logprobs.reset();
  settle_names(body);
  check_generation(body, json);
  const bool assistant = body.messages.back()["role"] == "assistant";
  const bool goes_on = body.continue_final_message.value_or(assistant);
  if (goes_on && !assistant)
    refuse("continue_final_message", "the last message is not the assistant's");
  if (goes_on && body.add_generation_prompt.value_or(false))
    refuse("add_generation_prompt",
           "add_generation_prompt with continue_final_message; leave one of them out");
  body.continue_final_message = goes_on;
  body.add_generation_prompt = body.add_generation_prompt.value_or(!goes_on);
  if (!body.tool_choice.is_null() && body.tools.is_null() && body.tool_choice != "none" &&
      body.tool_choice != "auto")
    refuse("tool_choice", "tool_choice without tools");
  return body;
}

}  // namespace tessera::serve
