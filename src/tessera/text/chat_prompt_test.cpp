#include "tessera/text/chat_prompt.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/text/chat_testing.h"

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

TEST(ChatPrompt, TheLastMessageGoesOn) {
  const ChatPrompt prompts(chat_tokenizer(), kTemplate, "test");
  const Json messages =
      Json::array({said("user", "tell"), said("assistant", "once upon a time  ")});
  const MarkedText text =
      prompts.render({.messages = messages, .add_generation_prompt = false}, true);
  EXPECT_EQ(text.text, "<|start|>user_tell<|end|><|start|>assistant_once upon a time");
  EXPECT_EQ(text.input.size(), text.text.size());
  const ChatPrompt deaf(chat_tokenizer(), "<|start|>{{ messages | length }}", "test");
  test::expect_error(ErrorKind::input, "it cannot go on", [&] {
    deaf.render({.messages = messages, .add_generation_prompt = false}, true);
  });
}

}  // namespace
}  // namespace tessera::text::chat_prompt_test
