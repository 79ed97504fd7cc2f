#include "tessera/text/chat/tools_in_prompt.h"

#include <gtest/gtest.h>

namespace tessera::text::tools_in_prompt_test {
namespace {

Json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

const Json kTools =
    Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"description", "does f"}}}}});

TEST(ToldTools, StandInTheSystemMessage) {
  const Json one = tools_in_prompt(Json::array({message("user", "q")}), kTools, true);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0]["role"], "system");
  EXPECT_NE(one[0]["content"].get<std::string>().find("does f"), std::string::npos);
  EXPECT_EQ(one[1], message("user", "q"));
  const Json two = tools_in_prompt(
      Json::array({message("system", "Be kind."), message("user", "q")}), kTools, true);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0]["content"], "Be kind.\n\n" + one[0]["content"].get<std::string>());
}

TEST(ToldTools, StandBeforeTheFirstQuestionWhereThereIsNoSystem) {
  const Json told = tools_in_prompt(
      Json::array({message("user", "q"), message("assistant", "a"), message("user", "r")}), kTools,
      false);
  ASSERT_EQ(told.size(), 3u);
  const std::string first = told[0]["content"];
  EXPECT_TRUE(first.starts_with("You may call functions"));
  EXPECT_TRUE(first.ends_with("\n\nq"));
  EXPECT_EQ(told[2], message("user", "r"));
}

TEST(ToldTools, CallsAndResultsAreTexts) {
  const auto call = [](const char* name, int x) {
    return Json{{"type", "function"}, {"function", {{"name", name}, {"arguments", {{"x", x}}}}}};
  };
  const Json asked =
      Json::array({message("user", "q"),
                   {{"role", "assistant"},
                    {"content", "Let me see."},
                    {"tool_calls", {call("f", 1), call("g", 2)}}},
                   {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "one"}},
                   {{"role", "tool"}, {"tool_call_id", "2"}, {"content", "two"}},
                   {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call("f", 3)}}}});
  EXPECT_EQ(tools_in_prompt(asked, nullptr, true),
            Json::array({message("user", "q"),
                         message("assistant",
                                 "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                                 "{\"x\":1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
                                 "\"arguments\": {\"x\":2}}\n</tool_call>"),
                         message("user",
                                 "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n"
                                 "</tool_response>"),
                         message("assistant",
                                 "<tool_call>\n{\"name\": \"f\", \"arguments\": "
                                 "{\"x\":3}}\n</tool_call>")}));
}

}  // namespace
}  // namespace tessera::text::tools_in_prompt_test
