#include "tessera/serve/tool_calls.h"

#include <gtest/gtest.h>

namespace tessera::serve::tool_calls_test {
namespace {

/// The text, then every call as "name(arguments)".
std::string split(const ToolFormat& format, const std::vector<std::string>& pieces) {
  ToolSplitter splitter(format);
  std::string text, calls;
  for (size_t i = 0; i < pieces.size(); ++i)
    for (const auto& piece : splitter.push(pieces[i], i + 1 == pieces.size())) {
      text += piece.text;
      if (piece.call) calls += "|" + piece.call->name + "(" + piece.call->arguments + ")";
    }
  return text + calls;
}

/// Whole, cut in two at every byte, and byte by byte.
void check(const ToolFormat& format, const std::string& text, const std::string& want) {
  EXPECT_EQ(split(format, {text}), want);
  for (size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(split(format, {text.substr(0, cut), text.substr(cut)}), want) << cut;
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  bytes.emplace_back();
  EXPECT_EQ(split(format, bytes), want);
}

TEST(ToolCalls, EachBetweenTags) {
  const ToolFormat format = *tool_format_of("... <tool_call>{{ x }}</tool_call> ...");
  check(
      format,
      "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}\n</tool_call>\n",
      "Let me see.|f({\"x\":[1,2]})");
  check(format,
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", "
        "\"arguments\": \"{\\\"y\\\": 1}\"}</tool_call>",
        "|f({})|g({\"y\":1})");
  check(format, "a < b <tool b", "a < b <tool b");
  // malformed ones are what was said
  check(format, "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": 1}</tool_call>");
  check(format, "x <tool_call>{\"name\": \"f\", \"arguments\": {}}",
        "x <tool_call>{\"name\": \"f\", \"arguments\": {}}");
  check(format, "", "");
}

TEST(ToolCalls, OneListBehindAMark) {
  const ToolFormat format = *tool_format_of("[TOOL_CALLS]");
  check(format,
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"g\", "
        "\"arguments\": {}}]",
        "|f({\"x\":1})|g({})");
  check(format, "[TOOL_CALLS] none", "[TOOL_CALLS] none");
  check(format, "[1, 2]", "[1, 2]");
}

TEST(ToolCalls, TheWholeAnswer) {
  const ToolFormat format = *tool_format_of("\"parameters\" ... ipython");
  check(format, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "|f({\"x\":1})");
  check(format, "{\"x\": 1}", "{\"x\": 1}");
  check(format, "Yes {\"name\": \"f\", \"parameters\": {}}",
        "Yes {\"name\": \"f\", \"parameters\": {}}");
}

TEST(ToolCalls, WhatIsNotKnown) {
  EXPECT_FALSE(tool_format_of("{{ messages }}").has_value());
  EXPECT_FALSE(tool_format_of("<tool_call><function=f>").has_value());
}

}  // namespace
}  // namespace tessera::serve::tool_calls_test
