#include "tessera/serve/bodies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

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
  expect_part(completion(R"("max_tokens": -1)"), "max_tokens is -1");
  expect_part(completion(R"("n": 17)"), "from 1 to 16");
  expect_part(completion(R"("top_p": true)"), "top_p is true");
  expect_part(completion(R"("seed": 1e300)"), "seed");
  // every option of sampling, as the table says it
  for (const infer::SamplingField& field : infer::sampling_fields()) {
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
  expect_part(completion(R"("max_tokens": 1, "n_predict": 2)"), "another name of");
  EXPECT_EQ(completion(R"("max_tokens": 2, "n_predict": 2)"), "");
  expect_part(completion(R"("stream_options": {"include_usage": true})"), "without stream");
  expect_part(completion(R"("beams": 2, "stream": true)"), "stream beside beams");
  expect_part(completion(R"("length_penalty": 2)"), "without a search");
  expect_part(completion(R"("grammar": "x", "json_schema": {})"), "more than one of");
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
              "names what the server itself says");
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
