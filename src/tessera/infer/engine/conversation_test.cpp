// Conversations: their files, what is taken back, and prompts that fit the context.
#include "tessera/infer/engine/conversation.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/text/chat/chat_testing.h"

namespace tessera::infer::conversation_test {
namespace {

using spec::Json;
using test::expect_error;
using test::TemporaryFolder;

// a token a letter, and one for each end
const text::ChatPrompt& prompts() {
  static const text::ChatPrompt made(
      text::chat_tokenizer(),
      "{%- for message in messages -%}{{- message.content ~ '<|end|>' -}}{%- endfor -%}", "test");
  return made;
}

Conversation talk(const std::string& system, int turns) {
  Conversation out;
  out.set_system(system);
  for (int i = 0; i < turns; ++i) {
    const std::string letter(1, static_cast<char>('a' + i));
    out.add("user", letter + letter + letter);
    if (i + 1 < turns) out.add("assistant", letter);
  }
  return out;
}

TEST(Conversation, LastMessagesAreTakenBack) {
  Conversation chat = talk("s", 2);
  EXPECT_EQ(chat.last(), "bbb");
  EXPECT_TRUE(chat.remove_answer());  // there is none behind the last question
  EXPECT_EQ(chat.messages().size(), 4u);
  chat.remove_question();
  EXPECT_EQ(chat.last(), "a");
  EXPECT_TRUE(chat.remove_answer());
  EXPECT_EQ(chat.last(), "aaa");
  chat.remove_question();
  EXPECT_FALSE(chat.remove_answer());
  EXPECT_EQ(chat.system(), "s");
  chat.set_system("");
  EXPECT_TRUE(chat.messages().empty());
  chat = talk("t", 3);
  chat.clear();
  EXPECT_EQ(chat.messages(), Json::parse(R"([{"role": "system", "content": "t"}])"));
}

TEST(Conversation, FilesHoldAMessageALine) {
  const TemporaryFolder folder;
  const auto path = folder / "chat.jsonl";
  talk("s", 2).save(path);
  const std::string text = read_text_file(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(Conversation::load(path).messages(), talk("s", 2).messages());
  const auto refused = [&](const std::string& text, const std::string& part) {
    expect_error(ErrorKind::file, part, [&] { Conversation::load(folder.write("bad", text)); });
  };
  refused("[]", "bad: line 1] no message; expected {\"role\": ..., \"content\": ...}");
  refused("\n{\"role\": \"user\"}", "bad: line 2] no message");
  refused(R"({"role": "user", "content": 3})", "no message");
  refused(R"({"role": "user", "content": "a", "name": "b"})", "no message");
  refused(R"({"role": "tool", "content": "a"})", "role \"tool\"; expected user or assistant");
  refused("{\"role\": \"user\", \"content\": \"a\"}\n{\"role\": \"system\", \"content\": \"b\"}",
          "line 2] role \"system\"; expected user or assistant, or system on the first line");
}

TEST(Conversation, PromptsThatFillTheContextLoseTheOldestMessages) {
  Conversation chat = talk("s", 4);
  // s aaa a bbb b ccc c ddd, with an end behind each
  EXPECT_EQ(std::ssize(prompts().encode(chat.prompt(prompts(), {}).text)), 24);
  EXPECT_EQ(chat.dropped(), 0);
  const std::string whole = chat.prompt(prompts(), {}).text.text;
  EXPECT_EQ(chat.prompt(prompts(), {.longest = 23}).text.text, whole);
  EXPECT_EQ(chat.prompt(prompts(), {.longest = 24, .shift = true}).text.text, whole);
  // half of the context is left free: 24 - 6 tokens are more than 11, so are 12
  const Conversation::Prompt shifted = chat.prompt(prompts(), {.longest = 23, .shift = true});
  EXPECT_EQ(shifted.text.text, "s<|end|>ddd<|end|>");
  EXPECT_TRUE(shifted.dropped_more);
  EXPECT_EQ(chat.dropped(), 6);
  EXPECT_EQ(chat.messages().size(), 8u);
  // later prompts leave them out too
  chat.add("assistant", "d");
  chat.add("user", "eee");
  const Conversation::Prompt later = chat.prompt(prompts(), {.longest = 23, .shift = true});
  EXPECT_EQ(later.text.text, "s<|end|>ddd<|end|>d<|end|>eee<|end|>");
  EXPECT_FALSE(later.dropped_more);
  // the last message stays, however long
  EXPECT_EQ(chat.prompt(prompts(), {.longest = 2, .shift = true, .last = "long"}).text.text,
            "s<|end|>long<|end|>");
  EXPECT_EQ(chat.last(), "eee");
  chat.clear();
  EXPECT_EQ(chat.dropped(), 0);
}

}  // namespace
}  // namespace tessera::infer::conversation_test
