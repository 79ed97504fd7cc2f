#include "tessera/serve/bodies.h"

#include <charconv>
#include <cmath>
#include <set>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;
constexpr size_t kMostText = size_t{8} << 20;  // as much as a body
constexpr size_t kMostStops = 16, kMostStopBytes = 256;
constexpr size_t kMostPrompts = 64, kMostInputs = 2048, kMostMessages = 4096, kMostTools = 128;
constexpr size_t kMostVariables = 16, kMostBiases = 1024, kMostBadWords = 128;

std::vector<std::string> texts_of(const Json& value, const std::string& name, size_t most) {
  if (value.is_string()) return {text_of(value, name, kMostText)};
  if (!value.is_array() || value.empty())
    refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                     "; expected a string, or a list of them");
  if (value.size() > most)
    refuse(name, fmt::format("{} has {} texts; expected at most {}", name, value.size(), most));
  std::vector<std::string> texts;
  for (size_t i = 0; i < value.size(); ++i)
    texts.push_back(text_of(value[i], fmt::format("{}[{}]", name, i), kMostText));
  return texts;
}

/// A string, ids, or a list of either.
std::vector<Prompt> prompts_of(const Json& value, const std::string& name, size_t most) {
  const auto one = [&](const Json& item, const std::string& which) {
    Prompt prompt;
    if (item.is_string())
      prompt.text = text_of(item, which, kMostText);
    else if (item.is_array())
      prompt.ids = ids_of(item, which, kMostText);
    else
      refuse(which, which + " is " + std::string(spec::kind_of(item)) +
                        "; expected a string, or a list of token ids");
    return prompt;
  };
  if (value.is_string() || (value.is_array() && !value.empty() && value[0].is_number()))
    return {one(value, name)};
  if (!value.is_array() || value.empty())
    refuse(name, name + " is " + (value.is_array() ? "empty" : std::string(spec::kind_of(value))) +
                     "; expected a string, a list of token ids, or a list of either");
  if (value.size() > most)
    refuse(name, fmt::format("{} has {} entries; expected at most {}", name, value.size(), most));
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < value.size(); ++i)
    prompts.push_back(one(value[i], fmt::format("{}[{}]", name, i)));
  return prompts;
}

/// {"50256": -100} or [[50256, false]]; of texts, all of their tokens.
void read_biases(GenerationBody& body, const Json& value, const std::string& name) {
  if ((!value.is_object() && !value.is_array()) || value.size() > kMostBiases)
    refuse(name, fmt::format("{} is no list of at most {} biases", name, kMostBiases));
  const auto add = [&](const Json& token, const Json& bias) {
    const double by = bias == false ? -INFINITY : number_of(bias, name, -100, 100);
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

Json object_schema() {
  return {{"type", "object"}};
}

template <class Body>
void add_model(Fields<Body>& fields) {
  fields.text("model", &Body::model, 512,
              "which of the models of /v1/models; not needed where there is one");
  fields.inert("user", "string", "not used");
}

/// The table of sampling's options.
template <class Body>
void add_sampling(Fields<Body>& fields) {
  for (const infer::SamplingField& field : infer::sampling_fields()) {
    const bool whole = field.whole();
    Json schema = {{"type", whole ? "integer" : "number"},
                   {"minimum", field.asked_least},
                   {"maximum", field.asked_most}};
    if (whole) {
      schema["minimum"] = static_cast<int64_t>(field.asked_least);
      schema["maximum"] = static_cast<int64_t>(field.asked_most);
    }
    fields.add(field.name, std::move(schema), field.doc,
               [&field, whole](Body& body, const Json& value, const std::string& name) {
                 const double read =
                     whole ? static_cast<double>(integer_of(value, name,
                                                            static_cast<int64_t>(field.asked_least),
                                                            static_cast<int64_t>(field.asked_most)))
                           : number_of(value, name, field.asked_least, field.asked_most);
                 body.sampling.emplace_back(&field, read);
               });
    if (*field.alias != 0) fields.alias(field.alias);
  }
  fields.add(
      "dry_sequence_breakers", {{"type", "array"}, {"items", {{"type", "string"}}}},
      "texts within tokens that no repeated run of DRY goes through: up to 32 of 1 to 32 bytes; "
      "default: a line's end, :, \" and *",
      [](Body& body, const Json& value, const std::string& name) {
        if (value.is_array() && value.empty()) {
          body.dry_sequence_breakers.emplace();
          return;
        }
        body.dry_sequence_breakers = texts_of(value, name, 32);
        for (const std::string& text : *body.dry_sequence_breakers)
          if (text.empty() || text.size() > 32)
            refuse(name,
                   fmt::format("{} holds a text of {} bytes; expected 1 to 32", name, text.size()));
      });
}

template <class Body>
void add_samplers(Fields<Body>& fields) {
  const std::vector<std::string> names(infer::sampler_names().begin(),
                                       infer::sampler_names().end());
  fields.add("samplers", {{"type", "array"}, {"items", {{"enum", names}}}},
             "what acts on the logits, in this order; what is left out does nothing. Default: "
             "all, as they are listed",
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

/// The text of a message's content: a string, or text parts one after another.
Json content_of(const Json& value, const std::string& name, bool may_lack) {
  if (value.is_string()) return value;
  if (value.is_null() && may_lack) return value;
  if (!value.is_array())
    refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                     "; expected a string, or a list of text parts");
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& part = value[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
      refuse(which, which + " is no part; expected {\"type\": \"text\", \"text\": ...}");
    if (part["type"] != "text")
      refuse(which, which + " is no text; this server reads text alone", "unsupported_content");
    for (const auto& [key, ignored] : part.items())
      if (key != "type" && key != "text") refuse_unknown(key, {"type", "text"});
    if (!part.contains("text")) refuse(which, which + " has no \"text\"");
    text += text_of(part["text"], which + ".text", kMostText);
  }
  return text;
}

template <class Body>
void add_generation(Fields<Body>& fields) {
  using G = GenerationBody;
  add_model(fields);
  fields
      .integer(
          "max_completion_tokens", &G::max_tokens, 0, kMostTokens,
          "at most so many new tokens; default: 16 of completions, the context's rest of chats")
      .alias("max_tokens")
      .alias("n_predict");
  add_sampling(fields);
  add_samplers(fields);
  fields.integer("min_tokens", &G::min_tokens, 0, kMostTokens, "no end before so many tokens");
  fields.add(
      "logit_bias", {{"type", "object"}},
      "{\"token id\": -100 to 100}, or [[id, bias or false], ...]: added to the logits; a text "
      "in place of an id stands for its tokens",
      [](Body& body, const Json& value, const std::string& name) {
        read_biases(body, value, name);
      });
  fields.add("allowed_token_ids", {{"type", "array"}, {"items", {{"type", "integer"}}}},
             "no other token is said", [](Body& body, const Json& value, const std::string& name) {
               body.allowed_token_ids = ids_of(value, name, kMostText);
               if (body.allowed_token_ids->empty())
                 refuse(name, name + " is empty; expected the id of a token at least");
             });
  fields.add("bad_words", {{"type", "array"}, {"maxItems", kMostBadWords}},
             "texts that are not said, as the tokenizer writes them alone or behind a space",
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_array() && value.empty()) return;
               body.bad_words = texts_of(value, name, kMostBadWords);
               for (const std::string& word : body.bad_words)
                 if (word.empty() || word.size() > kMostStopBytes)
                   refuse(name, fmt::format("{} holds a text of {} bytes; expected 1 to {}", name,
                                            word.size(), kMostStopBytes));
             });
  fields.add("seed", {{"type", "integer"}},
             "of the random choices; every answer names its own, by which it is made again",
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_number_unsigned())
                 body.seed = value.get<uint64_t>();
               else
                 body.seed = static_cast<uint64_t>(integer_of(value, name,
                                                              std::numeric_limits<int64_t>::min(),
                                                              std::numeric_limits<int64_t>::max()));
             });
  fields.add("stop",
             {{"oneOf", {{{"type", "string"}}, {{"type", "array"}, {"maxItems", kMostStops}}}}},
             "texts that end the answer before them: one, or a list of up to 16",
             [](Body& body, const Json& value, const std::string& name) {
               if (value.is_array() && value.empty()) return;
               body.stop = texts_of(value, name, kMostStops);
               for (const std::string& stop : body.stop)
                 if (stop.empty() || stop.size() > kMostStopBytes)
                   refuse(name, fmt::format("{} holds a text of {} bytes; expected 1 to {}", name,
                                            stop.size(), kMostStopBytes));
             });
  fields.add("stop_token_ids", {{"type", "array"}, {"items", {{"type", "integer"}}}},
             "tokens that end the answer before them",
             [](Body& body, const Json& value, const std::string& name) {
               body.stop_token_ids = ids_of(value, name, 64);
             });
  fields.flag("include_stop_str_in_output", &G::keep_stop,
              "the text of stop that ended the answer stays in it");
  fields.flag("ignore_eos", &G::ignore_eos, "go on after the end of text")
      .integer("n", &G::n, 1, 16, "choices; each but the first has a seed derived from `seed`")
      .alias("n_cmpl")
      .integer("beams", &G::beams, 1, 16, "search for the likeliest text with so many hypotheses")
      .number("length_penalty", &G::length_penalty, -10, 10,
              "with beams: scores are log p / length^penalty");
  fields.flag("stream", &G::stream, "events as the text is made (text/event-stream)");
  fields.add("stream_options", object_schema(),
             "{\"include_usage\": true}: one more event with the counts of tokens",
             [](Body& body, const Json& value, const std::string& name) {
               if (!value.is_object()) refuse(name, name + " is no object");
               for (const auto& [key, option] : value.items()) {
                 const std::string which = name + "." + key.substr(0, 60);
                 if (key == "include_usage")
                   body.include_usage = flag_of(option, which);
                 else if (key != "include_obfuscation" || flag_of(option, which))
                   refuse(which, which + " is not supported; expected include_usage",
                          "unsupported_parameter");
               }
             });
  fields
      .integer("timeout_ms", &G::timeout_ms, 1, int64_t{1} << 40,
               "milliseconds until the request is given up; at most the server's own deadline")
      .add("prediction", object_schema(),
           "{\"type\": \"content\", \"content\": ...}: what the answer may hold word for word; "
           "where "
           "the server guesses by --lookup it is there sooner",
           [](Body& body, const Json& value, const std::string& name) {
             if (!value.is_object() || value.value("type", Json()) != "content" ||
                 !value.contains("content") || value.size() != 2)
               refuse(name, name + ": expected {\"type\": \"content\", \"content\": ...}");
             body.prediction =
                 content_of(value["content"], name + ".content", false).get<std::string>();
           })
      .flag("return_token_ids", &G::return_token_ids, "choices with \"token_ids\"")
      .alias("return_tokens")
      .integer("priority", &G::priority, -10, 10,
               "the lower goes first, where the server has priorities")
      .flag("post_sampling_probs", &G::post_sampling_probs,
            "logprobs of what is drawn from: behind penalties, temperature and filters")
      .flag("cache_prompt", &G::cache_prompt,
            "share what the prompt begins with with other requests, before and after")
      .text("cache_salt", &G::cache_salt, 1024, "share it with requests of this salt alone");
  const auto keep = [&](const char* name, Json G::*member, const char* doc) {
    fields.add(name, object_schema(), doc,
               [member](Body& body, const Json& value, const std::string& said) {
                 if (!value.is_object()) refuse(said, said + " is no object");
                 body.*member = value;
               });
  };
  keep("response_format", &G::response_format,
       "{\"type\": \"text\" | \"json_object\" | \"json_schema\", ...}: what the text must be");
  keep("json_schema", &G::json_schema, "a JSON schema that the text must satisfy");
  keep("structured_outputs", &G::structured_outputs,
       "{json | regex | choice | grammar}: what the text must be");
  fields.add(
      "retrieve", Json::object(),
      "passages of the server's index before the question: true, false, or {\"passages\": at "
      "most so many, \"tokens\": of them together}",
      [](Body& body, const Json& value, const std::string& name) {
        body.retrieve = !value.is_boolean() || value.get<bool>();
        if (value.is_boolean()) return;
        if (!value.is_object())
          refuse(name, name + " is " + std::string(spec::kind_of(value)) +
                           "; expected true, false or {\"passages\", \"tokens\"}");
        for (const auto& [key, number] : value.items()) {
          const std::string which = name + "." + key.substr(0, 60);
          if (key == "passages")
            body.passages = integer_of(number, which, 1, 256);
          else if (key == "tokens")
            body.passage_tokens = integer_of(number, which, 1, kMostTokens);
          else
            refuse_unknown(key, {"passages", "tokens"});
        }
      });
  fields.text("grammar", &G::grammar, size_t{256} << 10, "GBNF that the text must follow");
  // what clients send without need
  fields.integer("best_of", &G::best_of, 1, 16, "as many as n: all choices are given");
  fields.inert("store", {false}, "nothing is stored")
      .inert("service_tier", {"auto", "default"}, "not used")
      .inert("modalities", {Json::array({"text"})}, "text alone")
      .inert("metadata", "object", "not used")
      .inert("safety_identifier", "string", "not used")
      .inert("prompt_cache_key", "string", "not used");
}

void check_generation(const GenerationBody& body, const Json& json) {
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
           fmt::format("best_of is {} beside n {}; expected the same", body.best_of, body.n),
           "unsupported_parameter");
  if (body.post_sampling_probs && !body.top_logprobs)
    refuse("post_sampling_probs", "post_sampling_probs without logprobs; expected these too");
  const bool searches = body.beams.value_or(1) > 1;
  if (body.length_penalty && !searches)
    refuse("length_penalty", "length_penalty without a search; expected beams of 2 or more");
  if (!searches) return;
  const auto beside = [](bool given, const char* name) {
    if (given)
      refuse(name, std::string(name) +
                       " beside beams: a search ranks whole texts by the model's own "
                       "probabilities; leave one of them out");
  };
  beside(body.stream, "stream");
  beside(body.sampled("temperature").value_or(0) > 0, "temperature");
  beside(body.n > 1, "n");
  beside(!body.stop.empty(), "stop");
  beside(body.constrained(), "response_format");
  beside(body.top_logprobs.has_value(), "logprobs");
}

// --- chat

/// Calls of tools as templates want them: arguments as an object.
Json tool_calls_of(const Json& value, const std::string& name) {
  if (!value.is_array() || value.empty() || value.size() > kMostTools)
    refuse(name, name + " is no list of 1 to 128 calls");
  Json calls = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& call = value[i];
    if (!call.is_object() || call.value("type", Json("function")) != "function" ||
        !call.contains("function") || !call["function"].is_object())
      refuse(which, which + " is no call of a function");
    const Json& function = call["function"];
    if (!function.contains("name") || !function.contains("arguments"))
      refuse(which, which + ".function lacks name or arguments");
    Json arguments = function["arguments"];
    if (arguments.is_string()) {
      try {
        arguments = spec::parse_json(arguments.get_ref<const std::string&>(), which);
      } catch (const Error&) {
        refuse(which + ".function.arguments", which + ".function.arguments is no JSON");
      }
    }
    if (!arguments.is_object())
      refuse(which + ".function.arguments", which + ".function.arguments is no object");
    Json out = {{"type", "function"},
                {"function",
                 {{"name", text_of(function["name"], which + ".function.name", 64)},
                  {"arguments", arguments}}}};
    if (call.contains("id")) out["id"] = text_of(call["id"], which + ".id", 256);
    calls.push_back(out);
  }
  return calls;
}

Json message_of(const Json& message, const std::string& name) {
  static const std::set<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!message.is_object())
    refuse(name, name + " is " + std::string(spec::kind_of(message)) + "; expected an object");
  if (!message.contains("role")) refuse(name + ".role", name + " has no role", "missing_parameter");
  const std::string role = text_of(message["role"], name + ".role", 64);
  if (!kRoles.contains(role))
    refuse(name + ".role",
           name + ".role is unknown; expected system, developer, user, assistant or tool");
  Json out = {{"role", role}};
  const bool calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
  for (const auto& [key, value] : message.items()) {
    const std::string which = name + "." + key.substr(0, 60);
    if (key == "role" || value.is_null()) continue;
    if (key == "content")
      out["content"] = content_of(value, which, calls);
    else if (key == "name" || key == "tool_call_id")
      out[key] = text_of(value, which, 256);
    else if (key == "reasoning_content" && role == "assistant")
      out[key] = text_of(value, which, kMostText);
    else if (key == "tool_calls" && role == "assistant")
      out[key] = tool_calls_of(value, which);
    else if (key != "refusal" && key != "annotations" && key != "audio" && key != "function_call")
      refuse_unknown(
          key, {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"});
    else if (key == "audio" || key == "function_call")
      refuse(which, which + " is not supported", "unsupported_content");
  }
  if (!out.contains("content")) {
    if (!calls) refuse(name + ".content", name + " has no content", "missing_parameter");
    out["content"] = "";
  }
  return out;
}

Json tools_of(const Json& value, const std::string& name) {
  if (!value.is_array() || value.size() > kMostTools)
    refuse(name, name + " is no list of at most 128 tools");
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    const Json& tool = value[i];
    if (!tool.is_object() || tool.value("type", Json()) != "function" ||
        !tool.contains("function") || !tool["function"].is_object())
      refuse(which, which + " is no function; expected {\"type\": \"function\", \"function\": ..}");
    const Json& function = tool["function"];
    const std::string called =
        function.contains("name") ? text_of(function["name"], which + ".function.name", 64) : "";
    if (called.empty() || called.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                                                   "uvwxyz0123456789_-") != std::string::npos)
      refuse(which + ".function.name",
             which + ".function.name: expected 1 to 64 letters, digits, _ and -");
    if (function.contains("parameters") && !function["parameters"].is_object())
      refuse(which + ".function.parameters", which + ".function.parameters is no JSON schema");
  }
  return value.empty() ? Json(nullptr) : value;
}

/// Names that templates have from elsewhere.
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
  return !(response_format.is_null() || response_format == Json{{"type", "text"}}) ||
         !json_schema.is_null() || !structured_outputs.is_null() || !grammar.empty();
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

const Fields<CompletionBody>& completion_fields() {
  static const Fields<CompletionBody> fields = [] {
    using C = CompletionBody;
    Fields<C> f;
    f.add(
        "prompt",
        {{"oneOf", {{{"type", "string"}}, {{"type", "array"}, {"maxItems", kMostPrompts}}}}},
        "what goes on: a text, token ids, or a list of either; beside an encoder it is the source",
        [](C& body, const Json& value, const std::string& name) {
          body.prompts = prompts_of(value, name, kMostPrompts);
        });
    f.required();
    add_generation(f);
    f.flag("echo", &C::echo, "the prompt in front of the text")
        .flag("parse_special", &C::parse_special,
              "special tokens written in the prompt become those tokens")
        .text("suffix", &C::suffix, kMostText,
              "what stands behind the text, where the model fills in the middle")
        .integer("logprobs", &C::top_logprobs, 0, 20,
                 "the logarithm of each token's probability, with so many of the likeliest")
        .alias("n_probs");
    return f;
  }();
  return fields;
}

const Fields<InfillBody>& infill_fields() {
  static const Fields<InfillBody> fields = [] {
    using I = InfillBody;
    Fields<I> f;
    f.text("input_prefix", &I::before, kMostText, "what stands before the text")
        .text("input_suffix", &I::behind, kMostText, "what stands behind it")
        .text("prompt", &I::begun, kMostText, "how the text begins");
    f.add("input_extra", {{"type", "array"}, {"maxItems", kMostPrompts}},
          "other files: {\"filename\", \"text\"}",
          [](I& body, const Json& value, const std::string& name) {
            if (!value.is_array() || value.size() > kMostPrompts)
              refuse(name, fmt::format("{} is no list of at most {} files", name, kMostPrompts));
            for (size_t i = 0; i < value.size(); ++i) {
              const std::string which = fmt::format("{}[{}]", name, i);
              if (!value[i].is_object() || !value[i].contains("text"))
                refuse(which, which + " is no {\"filename\", \"text\"}");
              InfillBody::File file{"", text_of(value[i]["text"], which + ".text", kMostText)};
              if (value[i].contains("filename"))
                file.name = text_of(value[i]["filename"], which + ".filename", 4096);
              body.files.push_back(std::move(file));
            }
          });
    add_generation(f);
    f.integer("logprobs", &I::top_logprobs, 0, 20,
              "the logarithm of each token's probability, with so many of the likeliest")
        .alias("n_probs");
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
          [](C& body, const Json& value, const std::string& name) {
            if (!value.is_array() || value.empty() || value.size() > kMostMessages)
              refuse(name, fmt::format("{} is no list of 1 to {} messages", name, kMostMessages));
            for (size_t i = 0; i < value.size(); ++i)
              body.messages.push_back(message_of(value[i], fmt::format("{}[{}]", name, i)));
          });
    f.required();
    add_generation(f);
    f.flag("logprobs", &C::logprobs, "the logarithm of each token's probability")
        .integer("top_logprobs", &C::top_logprobs, 0, 20, "with so many of the likeliest tokens")
        .flag("continue_final_message", &C::continue_final_message,
              "go on with the last message; default: if it is the assistant's")
        .flag("add_generation_prompt", &C::add_generation_prompt,
              "begin an answer; default: unless the last message goes on");
    f.add("tools", {{"type", "array"}, {"maxItems", kMostTools}}, "functions that may be called",
          [](C& body, const Json& value, const std::string& name) {
            body.tools = tools_of(value, name);
          });
    f.add("tool_choice", Json::object(),
          "none, auto, required, {\"type\": \"function\", ...}, or {\"type\": \"allowed_tools\", "
          "...}",
          [](C& body, const Json& value, const std::string& name) {
            const bool word = value == "none" || value == "auto" || value == "required";
            if (!word && !value.is_object())
              refuse(name, name + ": expected none, auto, required or a function");
            body.tool_choice = value;
          });
    f.flag("parallel_tool_calls", &C::parallel_tool_calls, "several calls in one answer");
    f.add("chat_template_kwargs", object_schema(), "variables of the template, at most 16",
          [](C& body, const Json& value, const std::string& name) {
            if (!value.is_object() || value.size() > kMostVariables)
              refuse(name, name + " is no object of at most 16 variables");
            for (const auto& [key, variable] : value.items()) {
              if (is_reserved(key)) refuse(name, name + " names what the server itself says");
              body.template_variables[key] = variable;
            }
          });
    f.text("chat_template", &C::chat_template, size_t{256} << 10,
           "a template in place of the model's, where the server allows it (--request-templates)");
    f.add("reasoning_effort", {{"type", "string"}}, "a variable of the template",
          [](C& body, const Json& value, const std::string& name) {
            body.template_variables["reasoning_effort"] = text_of(value, name, 64);
          });
    f.add("documents", {{"type", "array"}}, "a variable of the template",
          [](C& body, const Json& value, const std::string& name) {
            if (!value.is_array()) refuse(name, name + " is no list");
            body.template_variables["documents"] = value;
          });
    f.integer("reasoning_budget", &C::reasoning_budget, -1, kMostTokens,
              "tokens that the model thinks at most before it answers; -1 = as many as it likes");
    f.add("reasoning_format", {{"enum", {"auto", "none"}}},
          "auto: what the model thinks first is \"reasoning_content\"; none: it is content",
          [](C& body, const Json& value, const std::string& name) {
            if (value != "auto" && value != "none") refuse(name, name + ": expected auto or none");
            body.split_reasoning = value == "auto";
          });
    return f;
  }();
  return fields;
}

const Fields<EmbeddingsBody>& embeddings_fields() {
  static const Fields<EmbeddingsBody> fields = [] {
    using E = EmbeddingsBody;
    Fields<E> f;
    f.add("input", Json::object(), "a text, token ids, or a list of up to 2048 of either",
          [](E& body, const Json& value, const std::string& name) {
            body.input = prompts_of(value, name, kMostInputs);
          });
    f.required();
    add_model(f);
    f.add("encoding_format", {{"enum", {"float", "base64"}}},
          "numbers, or base64 of little-endian float32",
          [](E& body, const Json& value, const std::string& name) {
            if (value != "float" && value != "base64")
              refuse(name, name + ": expected float or base64");
            body.base64 = value == "base64";
          });
    f.integer("dimensions", &E::dimensions, 1, kMostTokens,
              "not supported but for the model's own");
    return f;
  }();
  return fields;
}

namespace {

/// A list in a list is a pair.
std::vector<TextOrPair> texts_or_pairs_of(const Json& value, const std::string& name, size_t most) {
  std::vector<TextOrPair> out;
  if (value.is_string()) {
    out.push_back({text_of(value, name, kMostText)});
    return out;
  }
  if (!value.is_array() || value.empty() || value.size() > most)
    refuse(name, fmt::format("{} is {}; expected a string, or a list of 1 to {} strings and pairs "
                             "[string, string]",
                             name,
                             value.is_array() ? fmt::format("a list of {}", value.size())
                                              : std::string(spec::kind_of(value)),
                             most));
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string which = fmt::format("{}[{}]", name, i);
    if (!value[i].is_array()) {
      out.push_back({text_of(value[i], which, kMostText)});
      continue;
    }
    if (value[i].size() != 2)
      refuse(which, fmt::format("{} is a list of {}; expected a pair [string, string]", which,
                                value[i].size()));
    out.push_back({text_of(value[i][0], which + "[0]", kMostText),
                   text_of(value[i][1], which + "[1]", kMostText)});
  }
  return out;
}

template <class Body>
void add_input(Fields<Body>& f) {
  f.add("input", Json::object(), "a text, or a list of up to 2048",
        [](Body& body, const Json& value, const std::string& name) {
          body.input = texts_of(value, name, kMostInputs);
        });
  f.required();
  add_model(f);
}

}  // namespace

const Fields<RerankBody>& rerank_fields() {
  static const Fields<RerankBody> fields = [] {
    using R = RerankBody;
    Fields<R> f;
    f.text("query", &R::query, kMostText, "what is asked").required();
    f.add("documents", {{"type", "array"}, {"maxItems", kMostInputs}}, "up to 2048 texts",
          [](R& body, const Json& value, const std::string& name) {
            if (!value.is_array()) refuse(name, name + " is no list of texts");
            body.documents = texts_of(value, name, kMostInputs);
          });
    f.required();
    add_model(f);
    f.integer("top_n", &R::top_n, 0, kMostTokens, "only so many of the best; 0 = all")
        .flag("use_activation", &R::use_activation,
              "scores of a classifier as probabilities; else its numbers")
        .flag("return_documents", &R::return_documents, "results with their texts");
    return f;
  }();
  return fields;
}

const Fields<ClassifyBody>& classify_fields() {
  static const Fields<ClassifyBody> fields = [] {
    Fields<ClassifyBody> f;
    f.add("input", Json::object(), "a text, or a list of up to 2048 texts and [text, text] pairs",
          [](ClassifyBody& body, const Json& value, const std::string& name) {
            body.input = texts_or_pairs_of(value, name, kMostInputs);
          });
    f.required();
    add_model(f);
    return f;
  }();
  return fields;
}

const Fields<FillMaskBody>& fill_mask_fields() {
  static const Fields<FillMaskBody> fields = [] {
    using M = FillMaskBody;
    Fields<M> f;
    add_input(f);
    f.integer("top_k", &M::top_k, 1, 1000, "so many tokens for each mask");
    f.add("targets", {{"type", "array"}}, "these tokens alone",
          [](M& body, const Json& value, const std::string& name) {
            body.targets = texts_of(value, name, 1000);
          });
    return f;
  }();
  return fields;
}

const Fields<TranslateBody>& translate_fields() {
  static const Fields<TranslateBody> fields = [] {
    using T = TranslateBody;
    Fields<T> f;
    add_input(f);
    f.text("source_lang", &T::source_lang, 64, "the language of the input, where a token names it")
        .text("target_lang", &T::target_lang, 64, "the language of the output")
        .integer("beams", &T::beams, 1, 16, "search with so many hypotheses; default 1")
        .integer("iterations", &T::iterations, 1, 64,
                 "of a model that predicts whole answers: so many times; default 10")
        .integer("length_candidates", &T::lengths, 1, 64,
                 "of such a model: answers of so many lengths, the likeliest is taken; default 5")
        .integer("max_tokens", &T::max_tokens, 1, kMostTokens, "of each answer, at most");
    return f;
  }();
  return fields;
}

const Fields<TokenizeBody>& tokenize_fields() {
  static const Fields<TokenizeBody> fields = [] {
    using T = TokenizeBody;
    Fields<T> f;
    f.add("content", {{"type", "string"}}, "the text",
          [](T& body, const Json& value, const std::string& name) {
            body.content = text_of(value, name, kMostText);
          });
    f.alias("prompt");
    f.add("messages", {{"type", "array"}}, "or a conversation, by the model's chat template",
          [](T& body, const Json& value, const std::string& name) {
            body.messages = Json::array();
            if (!value.is_array() || value.empty() || value.size() > kMostMessages)
              refuse(name, fmt::format("{} is no list of 1 to {} messages", name, kMostMessages));
            for (size_t i = 0; i < value.size(); ++i)
              body.messages.push_back(message_of(value[i], fmt::format("{}[{}]", name, i)));
          });
    add_model(f);
    f.flag("add_special", &T::add_special, "what the model expects around a text")
        .alias("add_special_tokens");
    f.flag("parse_special", &T::parse_special, "special tokens in the text become those tokens")
        .flag("with_pieces", &T::with_pieces, "the text of each token beside its id");
    return f;
  }();
  return fields;
}

const Fields<DetokenizeBody>& detokenize_fields() {
  static const Fields<DetokenizeBody> fields = [] {
    using D = DetokenizeBody;
    Fields<D> f;
    f.add("tokens", {{"type", "array"}, {"items", {{"type", "integer"}}}}, "ids",
          [](D& body, const Json& value, const std::string& name) {
            body.tokens = ids_of(value, name, kMostText);
          });
    f.required();
    add_model(f);
    return f;
  }();
  return fields;
}

CompletionBody read_completion(const Json& json, std::vector<std::string>* ignored) {
  auto body = completion_fields().read(json, ignored);
  check_generation(body, json);
  if (body.echo && body.beams.value_or(1) > 1) refuse("echo", "echo beside beams");
  if (body.echo && body.retrieve.value_or(false)) refuse("echo", "echo beside retrieve");
  if (!body.suffix.empty() && (body.echo || body.retrieve.value_or(false)))
    refuse("suffix", "suffix beside echo or retrieve");
  return body;
}

InfillBody read_infill(const Json& json, std::vector<std::string>* ignored) {
  InfillBody body = infill_fields().read(json, ignored);
  check_generation(body, json);
  if (body.before.empty() && body.behind.empty())
    refuse("input_prefix", "expected input_prefix, input_suffix or both", "missing_parameter");
  if (body.retrieve.value_or(false)) refuse("retrieve", "retrieve: there is no question here");
  return body;
}

ChatBody read_chat(const Json& json, std::vector<std::string>* ignored) {
  auto body = chat_fields().read(json, ignored);
  if (body.max_tokens && *body.max_tokens < 1)
    refuse("max_completion_tokens", "max_completion_tokens is 0; expected 1 or more");
  if (body.top_logprobs && !body.logprobs)
    refuse("top_logprobs", "top_logprobs without logprobs; expected \"logprobs\": true");
  if (body.logprobs && !body.top_logprobs) body.top_logprobs = 0;
  check_generation(body, json);
  const bool assistant = body.messages.back()["role"] == "assistant";
  const bool goes_on = body.continue_final_message.value_or(assistant);
  if (goes_on && !assistant)
    refuse("continue_final_message", "the last message is not the assistant's");
  if (goes_on && body.add_generation_prompt.value_or(false))
    refuse("add_generation_prompt", "add_generation_prompt beside continue_final_message");
  body.continue_final_message = goes_on;
  body.add_generation_prompt = body.add_generation_prompt.value_or(!goes_on);
  if (!body.tool_choice.is_null() && body.tools.is_null() && body.tool_choice != "none" &&
      body.tool_choice != "auto")
    refuse("tool_choice", "tool_choice without tools");
  return body;
}

}  // namespace tessera::serve
