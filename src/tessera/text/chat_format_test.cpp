// The texts are those of the templates of SmolLM2, Llama 3, Gemma and Zephyr, as transformers 5.23
// renders them.
#include "tessera/text/chat_format.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::text::chat_format_test {
namespace {

using test::expect_error;

const std::vector<ChatMessage> kTalk = {
    {"user", "Hi"}, {"assistant", "Yo"}, {"user", "Bye"}, {"assistant", "Ok"}};

std::string rendered(const char* format,
                     const std::vector<ChatMessage>& messages,
                     bool next = false) {
  return render_chat(chat_format(format), messages, next).text;
}

TEST(ChatFormat, GoldenSpansOfChatMl) {
  const ChatText chat = render_chat(chat_format("chatml"), kTalk);
  EXPECT_EQ(chat.text.size(), 131u);
  ASSERT_EQ(chat.answers.size(), 2u);
  EXPECT_EQ(chat.answers[0].begin, 52u);
  EXPECT_EQ(chat.answers[0].end, 64u);
  EXPECT_EQ(chat.answers[1].begin, 118u);
  EXPECT_EQ(chat.answers[1].end, 130u);
  EXPECT_EQ(chat.answers[1].message, 3u);
  EXPECT_EQ(chat.text.substr(52, 12), "Yo<|im_end|>");
}

TEST(ChatFormat, TextsOfEach) {
  const std::vector<ChatMessage> talk = {
      {"system", "Be kind."}, {"user", " Hi "}, {"assistant", "Yo\n"}};
  EXPECT_EQ(rendered("chatml", talk),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\nYo\n<|im_end|>\n");
  EXPECT_EQ(rendered("llama3", talk),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>");
  EXPECT_EQ(rendered("gemma", talk),
            "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
            "<start_of_turn>model\nYo<end_of_turn>\n");
  EXPECT_EQ(rendered("zephyr", talk),
            "<|system|>\nBe kind.</s>\n<|user|>\n Hi </s>\n<|assistant|>\nYo\n</s>\n");
}

TEST(ChatFormat, WhatAsksForAnAnswerIsWhatStandsBeforeOne) {
  for (const std::string& name : chat_format_names()) {
    const ChatText whole = render_chat(chat_format(name), kTalk);
    const std::string asked = rendered(name.c_str(), {kTalk.begin(), kTalk.end() - 1}, true);
    EXPECT_EQ(asked, whole.text.substr(0, whole.answers.back().begin)) << name;
    EXPECT_TRUE(whole.text.substr(0, whole.answers.back().end).ends_with(chat_format(name).stop()));
  }
}

TEST(ChatFormat, TurnsOutOfTurnAreNamed) {
  const auto refuses = [](const std::vector<ChatMessage>& messages, const std::string& message) {
    expect_error(ErrorKind::input, message, [&] { rendered("chatml", messages); });
  };
  refuses({{"user", "a"}, {"user", "b"}},
          "message 2: role \"user\"; expected \"assistant\" behind \"user\"");
  refuses({{"assistant", "a"}}, "message 1: role \"assistant\"; expected \"user\"");
  refuses({{"user", "a"}, {"system", "b"}}, "expected \"system\" as the first alone");
  refuses({{"tool", "a"}},
          "message 1: role \"tool\"; expected \"system\", \"user\" or \"assistant\"");
  expect_error(ErrorKind::usage, "unknown format \"alpaca\"; expected one of chatml, llama3",
               [] { chat_format("alpaca"); });
}

}  // namespace
}  // namespace tessera::text::chat_format_test
