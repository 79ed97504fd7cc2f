// The bodies of routes that make text.
#include "tessera/serve/body_values.h"

#include <charconv>
#include <cmath>
#include <set>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

constexpr size_t kMostStops = 16, kMostStopBytes = 256;
constexpr size_t kMostPrompts = 64;
constexpr size_t kMostVariables = 16, kMostBiases = 1024, kMostBadWords = 128;

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
            body.messages = messages_of(value, name);
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
