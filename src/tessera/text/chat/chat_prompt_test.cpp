#include "tessera/text/chat/chat_prompt.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/text/chat/chat_testing.h"

namespace tessera::text::chat_prompt_test {
namespace {

using spec::Json;

constexpr const char* kTemplate =
    "{% for m in messages %}<|start|>{{ m.role }}_{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant_<think>{% endif %}";

Json said(const char* role, const char* text) {
  return {{"role", role}, {"content", text}};
}

TEST(ChatPrompt, AnAnswerEndsAtWhatTheTemplatePutsBehindIt) {
  const Tokenizer tokens = chat_tokenizer();
  EXPECT_EQ(ChatPrompt(tokens, kTemplate, "test").ends(),
            (std::vector<int64_t>{*tokens.id("<|end|>")}));
  // ordinary text behind an answer ends none
  EXPECT_EQ(
      ChatPrompt(tokens, "{% for m in messages %}{{ m.content }}_{% endfor %}", "test").ends(),
      (std::vector<int64_t>{}));
  EXPECT_EQ(ChatPrompt(tokens, "{{ raise_exception('no') }}", "test").ends(),
            (std::vector<int64_t>{}));
}

TEST(ChatPrompt, ThoughtsOfThePromptAreOpenUntilTheyAreClosed) {
  const ChatPrompt prompts(chat_tokenizer(), kTemplate, "test");
  const Json messages = Json::array({said("user", "hi<think>")});
  EXPECT_TRUE(prompts.thinks(prompts.render({.messages = messages})));
  EXPECT_FALSE(
      prompts.thinks(prompts.render({.messages = messages, .add_generation_prompt = false})));
  EXPECT_FALSE(prompts.thinks({"<think>a</think>b", std::string(17, 0)}));
}

// All verbs and routes render by this class, so that a function or variable that transformers gives
// to templates is there in each.
TEST(ChatPrompt, ATemplateHasWhatTransformersGivesIt) {
  const auto said_by = [](const std::string& source, TemplateClock clock = local_time) {
    return ChatPrompt(chat_tokenizer(), source, "test", std::move(clock))
        .render({.messages = Json::array({said("user", "hi")})})
        .text;
  };
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt",
                           "raise_exception", "strftime_now", "namespace", "range", "dict"})
    EXPECT_EQ(said_by(fmt::format("{{{{ {} is defined }}}}", name)), "True") << name;
  for (const char* name : {"bos_token", "date_string", "enable_thinking"})
    EXPECT_EQ(said_by(fmt::format("{{{{ {} is defined }}}}", name)), "False") << name;
  EXPECT_EQ(said_by("{{ documents is none }} {{ tools is none }}"), "True True");
  const std::string year = said_by("{{ strftime_now('%Y') }}");
  EXPECT_TRUE(year.size() == 4 && year > "2020") << year;
  EXPECT_EQ(said_by("{{ strftime_now('%d %b %Y') }}", template_clock("2024-07-26", "")),
            "26 Jul 2024");
  EXPECT_EQ(said_by("{{ strftime_now is defined }}", template_clock("none", "")), "False");
  test::expect_error(ErrorKind::usage,
                     "[--template-date] found \"1.2.2024\"; expected today, none or a day such as "
                     "2024-07-26",
                     [] { template_clock("1.2.2024", "--template-date"); });
}

// As transformers 5 prepares messages before a template sees them.
TEST(ChatPrompt, KeysThatAreNullAreLeftOutAndReasoningIsFoundUnderEitherName) {
  const ChatPrompt prompts(chat_tokenizer(),
                           "{% for m in messages %}{{ 'content' in m }} {{ m.tool_calls is defined "
                           "}} {{ m.reasoning_content }} {{ m.thinking }}|{% endfor %}",
                           "test");
  const auto shown = [&](const Json& message) {
    return prompts.render({.messages = Json::array({message})}).text;
  };
  EXPECT_EQ(shown({{"role", "user"}, {"content", nullptr}, {"tool_calls", nullptr}}),
            "False False  |");
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    EXPECT_EQ(shown({{"role", "assistant"}, {"content", "x"}, {name, "so"}}), "True False so so|");
  EXPECT_EQ(
      shown(
          {{"role", "assistant"}, {"content", "x"}, {"thinking", "a"}, {"reasoning_content", "b"}}),
      "True False b a|");
}

TEST(ChatPrompt, TheLastMessageGoesOn) {
  const ChatPrompt prompts(chat_tokenizer(), kTemplate, "test");
  const Json messages =
      Json::array({said("user", "tell"), said("assistant", "once upon a time  ")});
  const MarkedText text =
      prompts.render({.messages = messages, .add_generation_prompt = false}, true);
  EXPECT_EQ(text.text, "<|start|>user_tell<|end|><|start|>assistant_once upon a time");
  EXPECT_EQ(text.input.size(), text.text.size());
  const ChatPrompt deaf(chat_tokenizer(), "<|start|>{{ messages | length }}", "test");
  test::expect_error(ErrorKind::input, "it cannot be continued", [&] {
    deaf.render({.messages = messages, .add_generation_prompt = false}, true);
  });
}

}  // namespace
}  // namespace tessera::text::chat_prompt_test
