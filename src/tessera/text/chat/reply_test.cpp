#include "tessera/text/chat/reply.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/rng.h"
#include "tessera/base/testing.h"
#include "tessera/text/grammar/grammar_constraint.h"

namespace tessera::text::reply_test {
namespace {

using spec::Json;

const Json& golden() {
  static const Json read = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                                "tests/golden/text/replies.json");
  return read;
}

std::string joined(const Json& markers) {
  std::string out;
  for (const Json& marker : markers) out += marker.get<std::string>() + "\n";
  return out;
}

Reply in_parts(const std::vector<std::string_view>& parts, const ReplyParser::Options& options) {
  ReplyParser reader(options);
  Reply out;
  const auto take = [&](const Reply& more) {
    out.reasoning += more.reasoning;
    out.content += more.content;
    out.calls.insert(out.calls.end(), more.calls.begin(), more.calls.end());
  };
  for (const std::string_view part : parts) take(reader.push(part));
  take(reader.finish());
  return out;
}

/// However an answer is cut into pieces, it says the same.
void expect_same_in_parts(const std::string& text, const ReplyParser::Options& options) {
  const Reply whole = read_reply(text, options);
  const auto same = [&](const Reply& other) {
    EXPECT_EQ(other.reasoning, whole.reasoning);
    EXPECT_EQ(other.content, whole.content);
    EXPECT_EQ(other.calls, whole.calls);
  };
  const std::string_view view = text;
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < view.size(); ++i) bytes.push_back(view.substr(i, 1));
  same(in_parts(bytes, options));
  for (size_t i = 1; i < view.size(); ++i)
    same(in_parts({view.substr(0, i), view.substr(i)}, options));
}

TEST(ReplyFormats, AreKnownByTheirTemplates) {
  for (const Json& row : golden()["rows"]) {
    SCOPED_TRACE(row["template"].get<std::string>());
    const ToolCallFormat* format = tool_call_format_of(joined(row["markers"]));
    EXPECT_EQ(format == nullptr ? Json() : Json(format->name), row["format"]);
  }
  EXPECT_EQ(tool_call_format_of(""), nullptr);
  EXPECT_EQ(tool_call_format_named("hermes")->open, "<tool_call>");
  EXPECT_EQ(tool_call_format_named("none"), nullptr);
}

TEST(ReplyParser, ReadsWhatTemplatesWrite) {
  size_t answers = 0;
  for (const Json& row : golden()["rows"])
    for (const Json& answer : row["answers"]) {
      const std::string text = answer["text"];
      SCOPED_TRACE(row["template"].get<std::string>() + ": " + text);
      ReplyParser::Options options{.format = tool_call_format_named(row["format"].get<std::string>()),
                                   .reasoning = thought_tags_of(joined(row["markers"])),
                                   .tools = golden()["tools"]};
      // the prompt has opened what the answer closes
      if (options.reasoning) {
        const size_t closed = text.find(options.reasoning->close);
        options.thinking =
            closed != std::string::npos && closed < text.find(options.reasoning->open);
      }
      const Reply reply = read_reply(text, options);
      EXPECT_EQ(reply.reasoning, "");
      std::string content = reply.content;
      content.erase(0, content.find_first_not_of(" \n"));
      EXPECT_EQ(content, answer["content"].get<std::string>());
      ASSERT_EQ(reply.calls.size(), answer["calls"].size());
      for (size_t i = 0; i < reply.calls.size(); ++i) {
        EXPECT_EQ(reply.calls[i].name, answer["calls"][i]["name"].get<std::string>());
        EXPECT_EQ(spec::parse_json(reply.calls[i].arguments, "arguments"),
                  answer["calls"][i]["arguments"]);
      }
      expect_same_in_parts(text, options);
      ++answers;
    }
  EXPECT_GT(answers, 90U);
}

TEST(ReplyParser, TellsThoughtsFromWhatIsSaid) {
  const ReasoningTags tags{"<think>", "</think>"};
  const auto check = [&](const std::string& text, bool thinking, const std::string& reasoning,
                         const std::string& content) {
    SCOPED_TRACE(text);
    const ReplyParser::Options options{.reasoning = tags, .thinking = thinking};
    const Reply reply = read_reply(text, options);
    EXPECT_EQ(reply.reasoning, reasoning);
    EXPECT_EQ(reply.content, content);
    expect_same_in_parts(text, options);
  };
  check("<think>\nLet me\n\nsee.\n</think>\n\nYes.\n", false, "Let me\n\nsee.", "Yes.\n");
  check("Hm. </think>Yes", true, "Hm.", "Yes");
  check("Hm. </thin", true, "Hm. </thin", "");
  check(" plain <b> text\n ", false, "", " plain <b> text\n ");
  // behind something said it is what is said
  check("Write <think> tags", false, "", "Write <think> tags");
  check("<think></think>a", false, "", "a");
  const Reply plain = read_reply("<think>a</think>b", {});
  EXPECT_EQ(plain.content, "<think>a</think>b");
}

TEST(ReplyParser, WhatIsNoCallIsContent) {
  const auto check = [](const char* format, const std::string& text, const std::string& content,
                        size_t calls) {
    SCOPED_TRACE(text);
    const ReplyParser::Options options{.format = tool_call_format_named(format),
                                       .tools = golden()["tools"]};
    const Reply reply = read_reply(text, options);
    EXPECT_EQ(reply.content, content);
    EXPECT_EQ(reply.calls.size(), calls);
    expect_same_in_parts(text, options);
  };
  check("hermes", "a <tool_call> b", "a <tool_call> b", 0);
  check("hermes", "<tool_call>{\"name\": 3}</tool_call>", "<tool_call>{\"name\": 3}</tool_call>",
        0);
  check("hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>", "",
        1);
  check("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {",
        "<tool_call>{\"name\": \"f\", \"arguments\": {", 0);
  // an answer that ends with its call
  check("hermes", "x\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n", "x", 1);
  check("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "",
        1);
  check("hermes", "<tool_call>{bad}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call>{bad}</tool_call>", 1);
  check("llama3", "{\"a\": 1}", "{\"a\": 1}", 0);
  check("llama3", "{\"name\": \"unknown\", \"parameters\": {}}",
        "{\"name\": \"unknown\", \"parameters\": {}}", 0);
  check("llama3", "<|python_tag|>{\"name\": \"note-2\", \"parameters\": {}}", "", 1);
  check("llama3",
        "{\"name\": \"note-2\", \"parameters\": {}}; {\"name\": \"note-2\", \"parameters\": {}}",
        "", 2);
  check("llama3", "see {\"name\": \"note-2\", \"parameters\": {}}",
        "see {\"name\": \"note-2\", \"parameters\": {}}", 0);
  check("mistral_named", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}", "", 2);
  check("mistral_named", "[TOOL_CALLS]", "[TOOL_CALLS]", 0);
  check("qwen3_coder", "<tool_call>\n<function=note-2>\n</function>\n</tool_call>", "", 1);
  check("qwen3_coder", "<tool_call>\n<function=note-2>\n<parameter=a>\n1",
        "<tool_call>\n<function=note-2>\n<parameter=a>\n1", 0);
}

// A reader that reads the whole call again at every bracket would not end.
TEST(ReplyParser, LongCallsAreReadInLinearTime) {
  const std::string code(3'000'000, '}');
  const std::string json = R"({"name": "f", "arguments": {"code": ")" + code + R"(\"\\"}})";
  for (const auto& [name, text] :
       {std::pair<const char*, std::string>{"hermes", "<tool_call>\n" + json + "\n</tool_call>"},
        {"granite", "<|tool_call|>[" + json + "]"},
        {"functionary", "<function=f>{\"code\": \"" + code + "\"}</function>"},
        {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=code>\n" + code +
                            "\n</parameter>\n</function>\n</tool_call>"}}) {
    SCOPED_TRACE(name);
    std::vector<std::string_view> parts;
    for (size_t at = 0; at < text.size(); at += 8)
      parts.push_back(std::string_view(text).substr(at, 8));
    const Reply reply = in_parts(parts, {.format = tool_call_format_named(name)});
    ASSERT_EQ(reply.calls.size(), 1U);
    EXPECT_EQ(reply.calls[0].name, "f");
    EXPECT_GE(reply.calls[0].arguments.size(), code.size());
    EXPECT_EQ(reply.content, "");
  }
}

TEST(ReplyParser, ArgumentsHaveTheTypesOfTheirSchemas) {
  const ReplyParser::Options options{.format = tool_call_format_named("qwen3_coder"),
                                     .tools = golden()["tools"]};
  const Reply reply = read_reply(
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n"
      "12\n</parameter>\n<parameter=other>\ntrue\n</parameter>\n</function>\n</tool_call>",
      options);
  ASSERT_EQ(reply.calls.size(), 1U);
  EXPECT_EQ(reply.calls[0].arguments, R"({"city":"12","days":12,"other":true})");
}

/// A text of the language, drawn byte by byte.
std::string random_text(const GrammarConstraint& constraint, const RandomKey& key) {
  const auto state = constraint.start();
  std::string text;
  std::vector<uint64_t> bits(4);
  for (uint64_t i = 0; i < 3000 && !state->must_end(); ++i) {
    if (state->may_end() && key.bits(3 * i) % 3 == 0) break;
    state->allow(bits);
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < 128; ++id)
      if (has_bit(bits, id)) ids.push_back(id);
    int64_t id = ids.empty() ? 0xC3 : ids[key.bits(3 * i + 1) % ids.size()];
    if (ids.empty()) {
      for (id = 128; id < 256 && !has_bit(bits, id);) ++id;
    } else if (key.bits(3 * i + 2) % 4 != 0) {
      for (const char c : {'"', '<', '/', '}', ']', '0'})
        if (has_bit(bits, c)) {
          id = c;
          break;
        }
    }
    EXPECT_TRUE(state->accept(id));
    text += static_cast<char>(id);
  }
  return state->may_end() ? text : "";
}

// what the grammar of a format lets through is read as calls of the tools
TEST(CallGrammar, IsWhatTheReaderReads) {
  std::vector<std::optional<std::string>> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(std::string(1, static_cast<char>(b)));
  const auto vocabulary = std::make_shared<const TokenTrie>(std::move(bytes));
  for (const ToolCallFormat& format : tool_call_formats()) {
    SCOPED_TRACE(format.name);
    for (const bool parallel : {false, true}) {
      const Grammar grammar = call_grammar(
          {.format = &format, .tools = golden()["tools"], .required = true, .parallel = parallel},
          "tools");
      const GrammarConstraint constraint(grammar, vocabulary, "tools");
      size_t read = 0;
      for (uint64_t seed = 0; seed < 160; ++seed) {
        const std::string text = random_text(constraint, RandomKey(seed));
        if (text.empty()) continue;
        SCOPED_TRACE(text);
        const Reply reply = read_reply(text, {.format = &format, .tools = golden()["tools"]});
        EXPECT_EQ(reply.content, "");
        ASSERT_GE(reply.calls.size(), 1U);
        EXPECT_TRUE(parallel || reply.calls.size() == 1U);
        for (const ToolCall& call : reply.calls) {
          EXPECT_TRUE(call.name == "get_weather" || call.name == "note-2") << call.name;
          if (call.name == "get_weather") {
            EXPECT_TRUE(spec::parse_json(call.arguments, "a")["city"].is_string());
          }
        }
        ++read;
      }
      EXPECT_GT(read, 10U);
    }
  }
}

TEST(CallGrammar, TextStandsBeforeCallsThatNobodyAskedFor) {
  const auto letters =
      std::make_shared<const TokenTrie>(std::vector<std::optional<std::string>>{"a"});
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
      "{\"city\":\"x\"}}\n</tool_call>";
  const auto holds = [&](CallGrammarOptions options, const std::string& text) {
    options.format = tool_call_format_named("hermes");
    options.tools = golden()["tools"];
    return GrammarConstraint(call_grammar(options, "tools"), letters, "tools").holds(text);
  };
  EXPECT_TRUE(holds({}, "No tool is needed."));
  EXPECT_TRUE(holds({}, "Let me see.\n" + call));
  EXPECT_TRUE(holds({}, call));
  EXPECT_FALSE(holds({}, "a <tool_call> b"));
  EXPECT_FALSE(holds({}, call + " and more"));
  EXPECT_FALSE(holds({.required = true}, "Let me see.\n" + call));
  EXPECT_TRUE(holds({.required = true}, call));
  EXPECT_TRUE(holds({.required = true}, call + "\n" + call));
  EXPECT_FALSE(holds({.required = true, .parallel = false}, call + "\n" + call));
  const ReasoningTags tags{"<think>", "</think>"};
  EXPECT_TRUE(
      holds({.required = true, .reasoning = tags}, "<think>\na <tool_call> b</think>\n" + call));
  EXPECT_TRUE(holds({.required = true, .reasoning = tags}, call));
  EXPECT_TRUE(holds({.required = true, .reasoning = tags, .thinking = true}, "hm</think>" + call));
  EXPECT_FALSE(holds({.required = true, .reasoning = tags, .thinking = true}, call));
}

TEST(CallGrammar, RefusesWhatIsNoTool) {
  const auto refused = [](const std::string& tools, const char* what) {
    test::expect_error(ErrorKind::input, what, [&] {
      call_grammar({.format = tool_call_format_named("hermes"), .tools = spec::parse_json(tools, "t")},
                   "tools");
    });
  };
  refused("{}", "expected an array of at most 128");
  refused("[]", "tools: none");
  refused("[3]", "tools[0]: found no function");
  refused(R"([{"type": "function", "function": {}}])", "tools[0]: found no name");
  refused(R"([{"function": {"name": "a b"}}])", "1 to 64 letters");
  refused(R"([{"function": {"name": "a"}}, {"function": {"name": "a"}}])", "another tool has");
  refused(R"([{"function": {"name": "a", "parameters": 3}}])", "parameters that are no schema");
  test::expect_error(ErrorKind::input, "in no format that is known here",
                     [] { call_grammar({.tools = golden()["tools"]}, "tools"); });
}

}  // namespace
}  // namespace tessera::text::reply_test
