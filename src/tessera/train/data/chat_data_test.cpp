#include "tessera/train/data/chat_data.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::chat_data_test {
namespace {

Conversation read(const std::string& example) {
  return conversation_in(json_of(example), "messages", "a.jsonl: line 1");
}

std::string written(const Conversation& talk) {
  std::string out;
  for (const Json& message : talk.messages)
    out += message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + "|";
  return out;
}

void bad(const std::string& example, const std::string& what) {
  SCOPED_TRACE(example);
  expect_error(ErrorKind::file, "a.jsonl: line 1: " + what, [&] { read(example); });
}

TEST(ChatData, LayoutsAreToldByTheirKeys) {
  const auto layout = [](const char* example) {
    const auto found = chat_layout_of(json_of(example), "messages");
    return found ? std::string(spec::enum_name(*found)) : "none";
  };
  EXPECT_EQ(layout(R"({"messages": []})"), "messages");
  EXPECT_EQ(layout(R"({"conversations": [], "system": ""})"), "sharegpt");
  EXPECT_EQ(layout(R"({"instruction": "a", "input": "", "output": "b"})"), "alpaca");
  EXPECT_EQ(layout(R"({"instruction": "a", "context": "c", "response": "b"})"), "alpaca");
  EXPECT_EQ(layout(R"({"prompt": "a", "completion": "b"})"), "prompt_completion");
  EXPECT_EQ(layout(R"({"prompt": "a", "response": "b"})"), "prompt_completion");
  EXPECT_EQ(layout(R"({"question": "a", "answer": "b"})"), "prompt_completion");
  EXPECT_EQ(layout(R"({"prompt": "a"})"), "none");
  EXPECT_EQ(layout(R"({"text": "a", "label": 1})"), "none");
  EXPECT_EQ(layout("[1]"), "none");
}

TEST(ChatData, UnpairedPreferencesAreRefused) {
  const auto refuse = [](const std::string& example) {
    refuse_unpaired(json_of(example), "a.jsonl: line 1");
  };
  for (const char* label : {"true", "false", "1", "0", R"("False")", R"("True")"}) {
    SCOPED_TRACE(label);
    expect_error(ErrorKind::file, "unpaired preferences (KTO) are not supported", [&] {
      refuse(fmt::format(R"({{"prompt": "a", "completion": "b", "label": {}}})", label));
    });
    expect_error(ErrorKind::file, "a.jsonl: line 1", [&] {
      refuse(fmt::format(R"({{"prompt": [{{"role": "user", "content": "a"}}],
                              "completion": [{{"role": "assistant", "content": "b"}}],
                              "label": {}}})",
                         label));
    });
  }
  // another label, or another layout, is none
  for (const char* example :
       {R"({"prompt": "a", "completion": "b"})",
        R"({"prompt": "a", "completion": "b", "label": null})",
        R"({"prompt": "a", "completion": "b", "label": "math"})",
        R"({"messages": [], "label": false})", R"({"text": "a", "label": true})"})
    EXPECT_NO_THROW(refuse(example)) << example;
}

TEST(ChatData, ReadsWhatDataSetsHave) {
  const char* want = "system:S|user:Hi|assistant:Yo|";
  for (
      const char* example : {
          R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"},
                            {"role": "assistant", "content": "Yo"}]})",
          R"({"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Hi"},
                                 {"from": "gpt", "value": "Yo"}]})",
          R"({"conversations": [{"from": "user", "value": "Hi"},
                                 {"from": "assistant", "value": "Yo"}], "system": "S"})",
          R"({"conversations": [{"role": "user", "content": "Hi"},
                                 {"role": "assistant", "content": "Yo"}], "system": "S"})",
          R"({"instruction": "Hi", "input": "", "output": "Yo", "system": "S"})",
          R"({"instruction": "Hi", "input": null, "output": "Yo", "system": "S"})",
          R"({"prompt": "Hi", "completion": "Yo", "system": "S"})",
          R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
               "completion": [{"role": "assistant", "content": "Yo"}]})",
          R"({"prompt": "Hi", "completion": {"role": "assistant", "content": "Yo"}, "system": "S"})",
          R"({"system_prompt": "S", "question": "Hi", "response": "Yo", "id": "niv.1"})",
          R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "H"},
                            {"type": "text", "text": "i"}]}, {"role": "assistant", "content": "Yo",
                            "tool_calls": []}], "system": "S"})"}) {
    SCOPED_TRACE(example);
    EXPECT_EQ(written(read(example)), want);
  }
  EXPECT_EQ(written(read(R"({"instruction": "Add.", "input": "1 2", "output": "3",
                             "history": [["a", "b"]]})")),
            "user:a|assistant:b|user:Add.\n1 2|assistant:3|");
}

TEST(ChatData, ToolsAndVariablesComeAlong) {
  const Conversation talk = read(R"({"messages": [{"role": "user", "content": "a"}],
      "tools": "[{\"type\": \"function\"}]", "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_EQ(talk.tools, json_of(R"([{"type": "function"}])"));
  EXPECT_EQ(talk.variables, json_of(R"({"enable_thinking": false})"));
  EXPECT_TRUE(
      read(R"({"messages": [{"role": "user", "content": "a"}], "tools": ""})").tools.is_null());
  bad(R"({"messages": [{"role": "user", "content": "a"}], "tools": 1})", "\"tools\" is an integer");
  bad(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"eos_token": "x"}})",
      "\"chat_template_kwargs\" sets \"eos_token\"");
}

TEST(ChatData, SaysWhatItCannotRead) {
  bad(R"({"text": "a"})", "\"messages\" is missing; found \"text\"; expected \"messages\", ");
  bad(R"({"messages": [{"role": "user"}]})", "message 1 has no string \"content\"");
  bad(R"({"messages": [{"role": "user", "content": null}]})",
      "message 1 has no string \"content\"");
  bad(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
      "message 1: \"content\" holds a part that is no text");
  bad(R"({"conversations": [{"from": "function_call", "value": "{}"}]})",
      "message 1: role \"function_call\"");
  bad(R"({"instruction": "", "output": "b"})", "\"instruction\" is empty");
  bad(R"({"instruction": 1, "output": "b"})", "\"instruction\" is an integer");
  bad(R"({"prompt": "a", "completion": "b", "label": true})",
      "\"prompt\", \"completion\" and \"label\": unpaired preferences (KTO)");
}

TEST(ChatData, OnlyStringsAreContinuedAsTheyAre) {
  const auto both = prompt_and_completion(json_of(R"({"prompt": "a", "completion": " b"})"));
  ASSERT_TRUE(both);
  EXPECT_EQ(both->completion, " b");
  EXPECT_FALSE(prompt_and_completion(json_of(R"({"prompt": [], "completion": " b"})")));
  EXPECT_FALSE(prompt_and_completion(json_of(R"({"instruction": "a", "output": " b"})")));
}

}  // namespace
}  // namespace tessera::train::chat_data_test
