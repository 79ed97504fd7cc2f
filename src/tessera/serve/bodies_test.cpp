#include "tessera/serve/bodies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace tessera::serve::bodies_test {
namespace {

/// The error of a body: its param, its code, its message.
template <class Read>
std::string refusal(const Read& read, const std::string& text) {
  try {
    read(parse_body(text, Limits{}), nullptr);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << text;
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return fmt::format("{} {} {}", error.param(), error.code(), error.what());
  }
  return "";
}
std::string completion(const std::string& fields) {
  return refusal(read_completion,
                 R"({"prompt": "x")" + (fields.empty() ? "" : ", " + fields) + "}");
}
std::string chat(const std::string& fields) {
  return refusal(read_chat, "{" + fields + "}");
}
void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected " << part;
}

TEST(Bodies, WhatIsNotJson) {
  for (const char* text : {"", "{", "{\"prompt\": \"a\", \"prompt\": \"b\"}", "nan", "\"\xff\"",
                           "{\"prompt\": \"\\ud800\"}", "{\"temperature\": 1e999}"})
    expect_part(refusal(read_completion, text), "invalid_json");
  expect_part(refusal(read_completion, std::string(100, '[') + std::string(100, ']')),
              "invalid_json");
  expect_part(refusal(read_completion, "[]"), "expected an object");
}

TEST(Bodies, EveryFieldHasATypeAndARange) {
  EXPECT_EQ(completion(""), "");
  EXPECT_EQ(completion(R"("temperature": null, "max_tokens": 16.0, "top_k": -1, "seed": -1)"), "");
  expect_part(completion(R"("temperature": 11)"),
              "temperature invalid_value temperature is 11; expected a number from 0 to 10");
  expect_part(completion(R"("temperature": "1")"), "temperature is a string");
  expect_part(completion(R"("max_tokens": 1.5)"), "max_tokens is 1.5; expected a whole number");
  expect_part(completion(R"("max_tokens": -2)"),
              "max_tokens is -2; expected a whole number from -1");
  expect_part(completion(R"("n": 17)"), "from 1 to 16");
  expect_part(completion(R"("top_p": true)"), "top_p is true");
  expect_part(completion(R"("seed": 1e300)"), "seed");
  // every option of sampling, as the table says it
  for (const infer::DecodingField& field : infer::sampling_fields()) {
    const auto say = [&](const std::string& value) {
      return completion(fmt::format("\"{}\": {}", field.name, value));
    };
    EXPECT_EQ(say(fmt::format("{}", field.asked_least)), "") << field.name;
    EXPECT_EQ(say(fmt::format("{}", field.asked_most)), "") << field.name;
    for (const char* bad : {"1e300", "-1e300", "\"1\"", "[1]", "{}", "true"})
      expect_part(say(bad), std::string(field.name) + " is ");
    if (field.whole()) expect_part(say("0.5"), "expected a whole number");
  }
  EXPECT_EQ(completion(R"("dry_sequence_breakers": [], "repeat_penalty": 1.1)"), "");
  expect_part(completion(R"("dry_sequence_breakers": [""])"), "expected 1 to 32");
  expect_part(completion(R"("dry_sequence_breakers": 3)"), "dry_sequence_breakers is an integer");
  expect_part(completion(R"("stop": ["a", ""])"), "1 to 256");
  expect_part(completion(R"("stop": [1])"), "stop[0]");
  expect_part(completion(R"("logprobs": 21)"), "logprobs");
  expect_part(completion(R"("logit_bias": [["a"]])"), "expected [[id, bias], ...]");
  expect_part(completion(R"("logit_bias": {"1": 101})"), "logit_bias is 101");
  expect_part(completion(R"("stream": "yes")"), "stream is a string; expected true or false");
  // what must not be said together
  expect_part(completion(R"("max_tokens": 1, "n_predict": 2)"),
              "max_tokens and n_predict are names of one parameter and have different values");
  expect_part(completion(R"("max_completion_tokens": 3, "max_tokens": 2)"),
              "max_completion_tokens and max_tokens are names of one parameter");
  EXPECT_EQ(completion(R"("max_tokens": 2, "n_predict": 2)"), "");
  expect_part(completion(R"("stream_options": {"include_usage": true})"), "without stream");
  expect_part(completion(R"("beams": 2, "stream": true)"),
              "stream is not available with beam search");
  expect_part(completion(R"("length_penalty": 2)"), "without beam search");
  expect_part(completion(R"("grammar": "x", "json_schema": {})"), "more than one of");
}

// a field of the list alone, or of requests alone, is an omission: options of decoding are entered
// in infer/sampling/decoding_fields.h
TEST(Bodies, OptionsOfDecodingAreThoseOfTheList) {
  const Json fields[] = {
      completion_fields().schema()["properties"], chat_fields().schema()["properties"],
      infill_fields().schema()["properties"], translate_fields().schema()["properties"]};
  std::set<std::string> listed;
  for (const infer::DecodingField& option : infer::decoding_fields()) {
    if ((option.accepted & infer::in_requests) == 0) continue;
    const std::string name = option.request_name();
    listed.insert(name);
    const bool translates = option.name == std::string_view("iterations") ||
                            option.name == std::string_view("length_candidates");
    const Json& own = fields[translates ? 3 : 0];
    ASSERT_TRUE(own.contains(name)) << name;
    EXPECT_TRUE(own[name]["description"].get<std::string>().starts_with(option.doc)) << name;
    for (const char* bound : {"minimum", "maximum"})
      if (own[name].contains(bound) && name != "seed") {
        EXPECT_EQ(own[name][bound].get<double>(),
                  bound[1] == 'i' ? option.asked_least : option.asked_most)
            << name;
      }
    for (const std::string& alias : option.request_aliases())
      EXPECT_EQ(own[alias]["description"], "another name of " + name) << alias;
  }
  // what else a request has: its input, the form of its answer, and how it is served
  const std::set<std::string> others = {"model",
                                        "prompt",
                                        "messages",
                                        "input",
                                        "input_prefix",
                                        "input_suffix",
                                        "input_extra",
                                        "suffix",
                                        "echo",
                                        "parse_special",
                                        "source_lang",
                                        "target_lang",
                                        "max_tokens",
                                        "best_of",
                                        "stream",
                                        "stream_options",
                                        "timeout_ms",
                                        "t_max_predict_ms",
                                        "timings_per_token",
                                        "prediction",
                                        "return_token_ids",
                                        "priority",
                                        "n_probs",
                                        "top_logprobs",
                                        "post_sampling_probs",
                                        "cache_prompt",
                                        "cache_salt",
                                        "response_format",
                                        "structured_outputs",
                                        "retrieve",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "continue_final_message",
                                        "add_generation_prompt",
                                        "tools",
                                        "tool_choice",
                                        "parallel_tool_calls",
                                        "chat_template",
                                        "chat_template_kwargs",
                                        "documents",
                                        "reasoning",
                                        "reasoning_effort",
                                        "reasoning_budget",
                                        "reasoning_format"};
  for (const Json& properties : fields)
    for (const auto& [name, property] : properties.items()) {
      const bool alias =
          property.value("description", std::string()).starts_with("another name of ");
      EXPECT_TRUE(property.contains("x-no-effect") || alias || listed.contains(name) ||
                  others.contains(name))
          << name << " is not in infer/sampling/decoding_fields.h";
    }
}

TEST(Bodies, UnknownFieldsNameTheNearest) {
  expect_part(completion(R"("temprature": 1)"), "unknown_parameter");
  expect_part(completion(R"("temprature": 1)"), "did you mean \"temperature\"?");
  expect_part(completion(R"("qqqqqqqqqq": 1)"), "/openapi.json");
  expect_part(completion(R"("best_of": 2)"), "unsupported_parameter");
  EXPECT_EQ(completion(R"("best_of": 1, "user": "u", "store": false)"), "");
  std::vector<std::string> ignored;
  read_completion(Json{{"prompt", "x"}, {"qq", 1}}, &ignored);
  EXPECT_EQ(ignored, std::vector<std::string>{"qq"});
}

TEST(Bodies, Prompts) {
  const auto prompts = [](const std::string& prompt) {
    return read_completion(parse_body("{\"prompt\": " + prompt + "}", Limits{})).prompts;
  };
  EXPECT_EQ(prompts("\"a\"").at(0).text, "a");
  EXPECT_EQ(*prompts("[1, 2]").at(0).ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(prompts("[\"a\", [3]]").size(), 2u);
  expect_part(refusal(read_completion, R"({"prompt": []})"), "prompt is empty");
  expect_part(refusal(read_completion, R"({"prompt": [-1]})"), "prompt is -1");
  expect_part(refusal(read_completion, R"({"prompt": {"a": 1}})"), "prompt is an object");
  expect_part(refusal(read_completion, "{}"), "missing_parameter");
  expect_part(refusal(read_completion, R"({"prompt": null})"), "missing_parameter");
}

TEST(Bodies, Messages) {
  EXPECT_EQ(chat(R"("messages": [{"role": "user", "content": "x"}])"), "");
  EXPECT_EQ(chat(R"("messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}])"),
            "");
  expect_part(chat(R"("messages": [])"), "no list of 1 to");
  expect_part(chat(R"("messages": [{"content": "x"}])"), "messages[0].role");
  expect_part(chat(R"("messages": [{"role": "root", "content": "x"}])"), "expected system");
  expect_part(chat(R"("messages": [{"role": "user"}])"), "has no content");
  expect_part(chat(R"("messages": [{"role": "user", "content": [{"type": "image_url"}]}])"),
              "messages[0].content[0] unsupported_content");
  expect_part(chat(R"("messages": [{"role": "user", "content": "x", "colour": 1}])"),
              "unknown_parameter");
  expect_part(chat(R"("messages": [{"role": "user", "content": "x"}], "top_logprobs": 2)"),
              "without logprobs");
  expect_part(chat(R"("messages": [{"role": "user", "content": "x"}],
                      "chat_template_kwargs": {"bos_token": "y"})"),
              "has a reserved variable name");
  const auto body = read_chat(parse_body(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "2"},
      {"role": "assistant", "content": "so"}]})",
                                         Limits{}));
  EXPECT_EQ(body.messages[0]["content"], "ab");
  EXPECT_EQ(body.messages[1]["tool_calls"][0]["function"]["arguments"], (Json{{"x", 1}}));
  EXPECT_TRUE(*body.continue_final_message);
  EXPECT_FALSE(*body.add_generation_prompt);
}

/// The messages of a history, after reading.
Json history(const std::string& messages, std::vector<std::string>* ignored = nullptr) {
  return read_chat(parse_body("{\"messages\": [" + messages + "]}", Limits{}), ignored).messages;
}

// what clients keep with their histories; each is sent by some client to other servers
TEST(Bodies, HistoriesAsClientsKeepThem) {
  const std::string hi = R"({"role": "user", "content": "hi"})";
  const Json plain = {{"role", "user"}, {"content", "hi"}};
  for (const char* extra :
       {R"("cache_control": {"type": "ephemeral"})", R"("id": "m1")", R"("refusal": null)",
        R"("annotations": [])", R"("provider_specific_fields": {"a": 1})", R"("tool_calls": [])",
        R"("tool_calls": null)", R"("function_call": null)", R"("audio": null)", R"("name": null)",
        R"("anything": null)"})
    EXPECT_EQ(history(R"({"role": "user", "content": "hi", )" + std::string(extra) + "}")[0], plain)
        << extra;
  for (const char* content :
       {R"([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}])",
        R"([{"type": "text", "text": "hi", "cache_control": null}])", R"(["h", "i"])",
        R"([{"type": "input_text", "text": "hi"}])"})
    EXPECT_EQ(history(fmt::format(R"({{"role": "user", "content": {}}})", content))[0], plain)
        << content;
  // reasoning has three names
  for (const char* name : {"reasoning", "reasoning_content", "thinking"})
    EXPECT_EQ(history(hi + fmt::format(R"(, {{"role": "assistant", "content": "yo", "{}": "hm"}})",
                                       name))[1]["reasoning_content"],
              "hm");
  // an assistant without content
  EXPECT_EQ(history(R"({"role": "assistant", "content": null}, )" + hi)[0],
            (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(history(R"({"role": "assistant", "content": null, "tool_calls": []}, )" + hi)[0],
            (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(
      history(R"({"role": "assistant", "content": null, "refusal": "no"}, )" + hi)[0]["content"],
      "no");
  EXPECT_EQ(
      history(R"({"role": "tool", "tool_call_id": "1", "content": null}, )" + hi)[0]["content"],
      "");
  expect_part(chat(R"("messages": [{"role": "user", "content": null}])"), "has no content");
  expect_part(chat(R"("messages": [{"role": "assistant"}, {"role": "user", "content": "x"}])"),
              "messages[0] has no content");
  expect_part(chat(R"("messages": [{"role": "user", "content": "x", "tool_calls": [1]}])"),
              "only the assistant calls");
}

TEST(Bodies, ArgumentsOfCallsAsClientsKeepThem) {
  const auto arguments = [](const std::string& value) {
    const std::string member = value.empty() ? "" : ", \"arguments\": " + value;
    return history(
        R"({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "index": 0,
                       "type": "function", "function": {"name": "f")" +
        member +
        R"(}}]}, {"role": "tool", "tool_call_id": "c", "content": "1"})")[0]["tool_calls"][0]
                                                                         ["function"]["arguments"];
  };
  const Json none = Json::object();
  for (const char* empty : {"", "null", "\"\"", "\" \"", "\"null\"", "{}", "\"{}\""})
    EXPECT_EQ(arguments(empty), none) << empty;
  EXPECT_EQ(arguments(R"("{\"a\": [1]}")"), (Json{{"a", {1}}}));
  EXPECT_EQ(arguments(R"({"a": [1]})"), (Json{{"a", {1}}}));
  // a model has written what is no JSON object: it stays as it was said
  for (const char* raw : {"{\"a\": ", "[1]", "a=1", "\"x\""})
    EXPECT_EQ(arguments(Json(raw).dump()), raw);
  expect_part(chat(R"("messages": [{"role": "assistant", "content": "", "tool_calls": [
                     {"function": {"name": "f", "arguments": 5}}]}])"),
              "arguments is an integer; expected a string that holds a JSON object");
  expect_part(chat(R"("messages": [{"role": "assistant", "content": "", "tool_calls": [
                     {"function": {"arguments": "{}"}}]}])"),
              "has no name");
}

TEST(Bodies, LenienceReachesIntoNestedObjects) {
  std::vector<std::string> ignored;
  read_chat(parse_body(R"({"nonsense": 1, "stream": true, "stream_options": {"a": 1},
      "prediction": {"type": "content", "content": "x", "b": 2}, "retrieve": {"c": 1},
      "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "d": 1}], "e": 2},
        {"role": "assistant", "content": "", "tool_calls": [
          {"f": 1, "function": {"name": "x", "arguments": "", "g": 1}}]}]})",
                       Limits{}),
            &ignored);
  EXPECT_EQ(ignored, (std::vector<std::string>{"nonsense", "stream_options.a", "prediction.b",
                                               "retrieve.c", "messages[0].content[0].d",
                                               "messages[0].e", "messages[1].tool_calls[0].f",
                                               "messages[1].tool_calls[0].function.g"}));
  ignored.clear();
  read_infill(
      parse_body(R"({"input_prefix": "a", "input_extra": [{"text": "b", "h": 1}]})", Limits{}),
      &ignored);
  EXPECT_EQ(ignored, std::vector<std::string>{"input_extra[0].h"});
  // otherwise each is refused by its path
  expect_part(
      chat(R"("messages": [{"role": "user", "content": "x", "nam": "y"}])"),
      "messages[0].nam unknown_parameter there is no parameter \"messages[0].nam\"; did you "
      "mean \"name\"?");
  // and no list is as long as a client likes
  Json many = {{"prompt", "x"}};
  for (int i = 0; i < 1000; ++i) many["unknown" + std::to_string(i)] = 1;
  ignored.clear();
  read_completion(many, &ignored);
  EXPECT_EQ(ignored.size(), 64u);
}

// null asks for nothing, whatever it is the value of
TEST(Bodies, NullIsAsGoodAsAbsent) {
  const auto attempt = [](const auto& fields, const Json& base) {
    Json body = base;
    const Json schema = fields.schema();
    for (const auto& [name, ignored] : schema["properties"].items())
      if (!base.contains(name)) body[name] = nullptr;
    for (const char* name : {"functions", "function_call", "audio", "web_search_options",
                             "verbosity", "moderation", "a name of next year"})
      body[name] = nullptr;
    EXPECT_NO_THROW(fields.read(body));
  };
  attempt(completion_fields(), {{"prompt", "x"}});
  attempt(chat_fields(), {{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})}});
  attempt(infill_fields(), {{"input_prefix", "x"}});
  attempt(embeddings_fields(), {{"input", "x"}});
  attempt(rerank_fields(), {{"query", "x"}, {"documents", {"x"}}});
  attempt(classify_fields(), {{"input", "x"}});
  attempt(fill_mask_fields(), {{"input", "x"}});
  attempt(translate_fields(), {{"input", "x"}});
  attempt(tokenize_fields(), Json::object());
  attempt(detokenize_fields(), {{"tokens", {1}}});
  // nor within tools
  const ChatBody body = read_chat(parse_body(R"({"messages": [{"role": "user", "content": "x"}],
      "stream_options": null, "response_format": null, "tool_choice": null, "tools": [
        {"function": {"name": "f", "description": null, "parameters": null, "strict": null}}]})",
                                             Limits{}));
  EXPECT_EQ(body.tools, Json::array({{{"function", {{"name", "f"}}}, {"type", "function"}}}));
}

// the server README of llama.cpp, and the settings that its servers show and clients send back
TEST(Bodies, LlamaCppsDefaultsArePassed) {
  const Json defaults = parse_body(R"({"prompt": "a", "n_predict": -1, "id_slot": -1, "n_keep": 0,
      "n_indent": 0, "n_discard": 0, "n_cache_reuse": 0, "t_max_predict_ms": 0, "min_keep": 0,
      "n_probs": 0, "image_data": [], "lora": [], "response_fields": [], "stop": [],
      "logit_bias": [], "seed": -1, "ignore_eos": false, "stream": false, "cache_prompt": true,
      "return_tokens": false, "timings_per_token": false, "return_progress": false,
      "post_sampling_probs": false, "temperature": 0.8, "dynatemp_range": 0.0,
      "dynatemp_exponent": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "top_n_sigma": -1.0,
      "xtc_probability": 0.0, "xtc_threshold": 0.1, "typical_p": 1.0, "repeat_last_n": 64,
      "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
      "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
      "dry_sequence_breakers": ["\n", ":", "\"", "*"], "mirostat": 0, "mirostat_tau": 5.0,
      "mirostat_eta": 0.1, "grammar": "", "samplers": ["penalties", "dry", "top_k", "typ_p",
      "top_p", "min_p", "xtc", "temperature"], "speculative.n_max": 16, "speculative.n_min": 0,
      "speculative.p_min": 0.75})",
                                   Limits{});
  const CompletionBody body = read_completion(defaults);
  EXPECT_TRUE(body.unbounded);
  EXPECT_FALSE(body.max_tokens || body.seed || body.top_logprobs);
  for (const char* other : {R"("id_slot": 0)", R"("n_keep": 5)", R"("min_keep": 3)",
                            R"("lora": [{"id": 0, "scale": 1}])", R"("image_data": ["x"])"})
    expect_part(completion(other), "unsupported_parameter");
  // 0 of n_probs is none, where 0 of logprobs is the chosen tokens' own
  EXPECT_EQ(read_completion({{"prompt", "x"}, {"logprobs", 0}}).top_logprobs, 0);
  EXPECT_EQ(read_completion({{"prompt", "x"}, {"n_probs", 3}}).top_logprobs, 3);
  expect_part(completion(R"("n_probs": 3, "logprobs": 2)"), "n_probs with another number");
  const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
  EXPECT_EQ(read_chat({{"messages", messages}, {"logprobs", true}, {"n_probs", 3}}).top_logprobs,
            3);
  EXPECT_FALSE(read_chat({{"messages", messages}, {"top_logprobs", 0}}).top_logprobs);
}

TEST(Bodies, VllmsNamesAndDefaults) {
  EXPECT_EQ(completion(R"("use_beam_search": false, "skip_special_tokens": true, "detokenize": true,
      "spaces_between_special_tokens": true, "truncate_prompt_tokens": null, "request_id": "r",
      "include_stop_str_in_output": false, "return_tokens_as_token_ids": false, "priority": 0,
      "prompt_logprobs": null, "add_special_tokens": true, "allowed_token_ids": null)"),
            "");
  EXPECT_EQ(read_completion({{"prompt", "x"}, {"guided_regex", "a+"}}).structured_outputs,
            (Json{{"regex", "a+"}}));
  expect_part(completion(R"("guided_regex": "a", "guided_json": {})"), "leave one of them out");
  expect_part(completion(R"("guided_regex": "a", "grammar": "root ::= \"a\"")"),
              "more than one of");
}

TEST(Bodies, SeedMinusOneIsNoSeed) {
  EXPECT_FALSE(read_completion({{"prompt", "x"}, {"seed", -1}}).seed);
  EXPECT_FALSE(read_completion({{"prompt", "x"}, {"seed", -1.0}}).seed);
  expect_part(completion(R"("seed": -2)"), "seed is -2; expected a whole number up to 2^64 - 1");
  EXPECT_EQ(read_completion({{"prompt", "x"}, {"seed", 0}}).seed, 0u);
  EXPECT_EQ(read_completion({{"prompt", "x"}, {"seed", std::numeric_limits<uint64_t>::max()}}).seed,
            std::numeric_limits<uint64_t>::max());
}

TEST(Bodies, TheMinimumOfTokensIsNotAboveTheMaximum) {
  EXPECT_EQ(completion(R"("min_tokens": 5, "max_tokens": 5)"), "");
  EXPECT_EQ(completion(R"("min_tokens": 50)"), "");
  expect_part(completion(R"("min_tokens": 6, "max_tokens": 5)"),
              "min_tokens is 6, max_tokens is 5; expected at most as many");
}

TEST(Bodies, ChoicesOfTools) {
  const auto chosen = [](const std::string& choice) {
    return chat(R"("messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function",
        "function": {"name": "f"}}], "tool_choice": )" +
                choice);
  };
  for (const char* good :
       {"null", "\"none\"", "\"auto\"", "\"required\"",
        R"({"type": "function", "function": {"name": "f"}})",
        R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": []})"})
    EXPECT_EQ(chosen(good), "") << good;
  for (const char* bad : {"5", "[]", R"({"type": "allowed_tools", "allowed_tools": 5})",
                          R"({"type": "allowed_tools", "allowed_tools": [1]})",
                          R"({"type": "allowed_tools", "allowed_tools": {"tools": 5}})",
                          R"({"type": "allowed_tools", "mode": "all", "tools": []})"})
    expect_part(chosen(bad), "tool_choice");
}

// whatever a field is given, the answer is a refusal or a body
TEST(Bodies, NoValueOfAnyFieldIsMoreThanRefused) {
  const std::vector<Json> values = {-1,
                                    0,
                                    int64_t{1} << 31,
                                    uint64_t{1} << 63,
                                    1e308,
                                    nullptr,
                                    "",
                                    Json::array(),
                                    Json::object(),
                                    true,
                                    Json::array({Json::array()}),
                                    std::string(1 << 20, 'x')};
  int refused = 0;
  const auto attempt = [&](const auto& fields, Json base) {
    const Json schema = fields.schema();
    for (const auto& [name, ignored] : schema["properties"].items())
      for (const Json& value : values) {
        Json body = base;
        body[name] = value;
        try {
          fields.read(body);
        } catch (const ApiError& error) {
          EXPECT_EQ(error.status(), 400);
          EXPECT_LT(std::string(error.what()).size(), 500u);
          ++refused;
        }
      }
  };
  attempt(completion_fields(), {{"prompt", "x"}});
  attempt(chat_fields(), Json::object());
  attempt(embeddings_fields(), Json::object());
  attempt(rerank_fields(), Json::object());
  attempt(fill_mask_fields(), Json::object());
  attempt(translate_fields(), Json::object());
  attempt(tokenize_fields(), Json::object());
  attempt(detokenize_fields(), Json::object());
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tessera::serve::bodies_test
