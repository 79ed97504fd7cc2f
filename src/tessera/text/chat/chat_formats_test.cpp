// The texts are those of the templates of SmolLM2, Llama 3, Gemma and Zephyr, as transformers 5.23
// renders them.
#include "tessera/text/chat/chat_formats.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera::text::chat_formats_test {
namespace {

using spec::Json;
using test::expect_error;

struct Message {
  std::string role, content;
};
const std::vector<Message> kTalk = {
    {"user", "Hi"}, {"assistant", "Yo"}, {"user", "Bye"}, {"assistant", "Ok"}};

MarkedText rendered(const std::string& format,
                    const std::vector<Message>& messages,
                    bool next = false) {
  Json list = Json::array();
  for (const Message& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return ChatTemplate(chat_format_source(format).value(), format)
      .render({.messages = list, .add_generation_prompt = next});
}

/// What is marked as answers, with a bar between them.
std::string answers(const MarkedText& text) {
  std::string out;
  for (size_t i = 0; i < text.text.size(); ++i) {
    if (text.answer[i] == 0) continue;
    if (!out.empty() && text.answer[i - 1] == 0) out += '|';
    out += text.text[i];
  }
  return out;
}

TEST(ChatFormats, GoldenSpansOfChatMl) {
  const MarkedText chat = rendered("chatml", kTalk);
  ASSERT_EQ(chat.text.size(), 131u);
  for (size_t i = 0; i < 131; ++i)
    EXPECT_EQ(chat.answer[i] != 0, (i >= 52 && i < 64) || (i >= 118 && i < 130)) << i;
  EXPECT_EQ(answers(chat), "Yo<|im_end|>|Ok<|im_end|>");
  // marked as an answer or not, what was said stays input
  EXPECT_EQ(std::count(chat.input.begin(), chat.input.end(), 1), 9);
}

TEST(ChatFormats, TextsOfEach) {
  const std::vector<Message> talk = {
      {"system", "Be kind."}, {"user", " Hi "}, {"assistant", "Yo\n"}};
  const MarkedText chatml = rendered("chatml", talk), llama = rendered("llama3", talk),
                   gemma = rendered("gemma", talk), zephyr = rendered("zephyr", talk);
  EXPECT_EQ(chatml.text,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\nYo\n<|im_end|>\n");
  EXPECT_EQ(llama.text,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>");
  EXPECT_EQ(gemma.text,
            "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n"
            "<start_of_turn>model\nYo<end_of_turn>\n");
  EXPECT_EQ(zephyr.text, "<|system|>\nBe kind.</s>\n<|user|>\n Hi </s>\n<|assistant|>\nYo\n</s>\n");
  EXPECT_EQ(answers(chatml), "Yo\n<|im_end|>");
  EXPECT_EQ(answers(llama), "Yo<|eot_id|>");
  EXPECT_EQ(answers(gemma), "Yo<end_of_turn>");
  EXPECT_EQ(answers(zephyr), "Yo\n</s>");
}

TEST(ChatFormats, WhatAsksForAnAnswerIsWhatStandsBeforeOne) {
  for (const std::string& name : chat_format_names()) {
    const MarkedText whole = rendered(name, kTalk);
    const std::string asked = rendered(name, {kTalk.begin(), kTalk.end() - 1}, true).text;
    ASSERT_TRUE(whole.text.starts_with(asked)) << name;
    EXPECT_EQ(whole.answer[asked.size()], 1) << name;
    EXPECT_EQ(whole.answer[asked.size() - 1], 0) << name;
  }
}

TEST(ChatFormats, TurnsOutOfTurnAreNamed) {
  const auto refuses = [](const std::vector<Message>& messages, const std::string& message) {
    for (const std::string& name : chat_format_names())
      expect_error(ErrorKind::input, message, [&] { rendered(name, messages); });
  };
  refuses({{"user", "a"}, {"user", "b"}},
          "message 2: role \"user\"; expected \"assistant\" behind \"user\"");
  refuses({{"assistant", "a"}}, "message 1: role \"assistant\"; expected \"user\"");
  refuses({{"user", "a"}, {"system", "b"}}, "expected \"system\" as the first alone");
  refuses({{"tool", "a"}},
          "message 1: role \"tool\"; expected \"system\", \"user\" or \"assistant\"");
  EXPECT_EQ(chat_format_source("alpaca"), std::nullopt);
}

}  // namespace
}  // namespace tessera::text::chat_formats_test
