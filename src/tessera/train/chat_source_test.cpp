#include "tessera/train/chat_source.h"

#include "tessera/convert/tokenizer.h"
#include "tessera/text/chat_formats.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::chat_source_test {
namespace {

struct Message {
  std::string role, content;
};
const std::vector<Message> kTalk = {
    {"user", "Hi"}, {"assistant", "Yo"}, {"user", "Bye"}, {"assistant", "Ok"}};

std::string line_of(const std::vector<Message>& messages) {
  Json list = Json::array();
  for (const Message& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return Json{{"messages", list}}.dump() + "\n";
}

const text::Tokenizer& bytes() {
  static const text::Tokenizer tokenizer = convert::find_tokenizer("bytes");
  return tokenizer;
}

/// The messages by the template of a format, or by this one.
ChatTokens tokens_of(const std::vector<Message>& messages,
                     ChatTurns turns,
                     int64_t length,
                     const std::string& source = text::chat_format_source("chatml").value()) {
  return chat_tokens(read_conversation(line_of(messages), "messages", "line"), turns,
                     {bytes(), source, "test"}, bytes(), length);
}

/// The bytes that are asked for, as text with a bar between runs.
std::string asked(const ChatTokens& chat) {
  std::string out;
  for (size_t i = 0; i < chat.targets.size(); ++i) {
    if (chat.targets[i] < 0) continue;
    if (i > 0 && chat.targets[i - 1] < 0 && !out.empty()) out += '|';
    out += static_cast<char>(chat.targets[i]);
  }
  return out;
}

TEST(ChatTokens, GoldenTargetsAreAnswersWithWhatEndsThem) {
  const ChatTokens all = tokens_of(kTalk, ChatTurns::all, 200);
  ASSERT_EQ(all.ids.size(), 130u);
  std::vector<size_t> targets;
  for (size_t i = 0; i < all.targets.size(); ++i)
    if (all.targets[i] >= 0) {
      EXPECT_EQ(all.targets[i], i + 1 < all.ids.size() ? all.ids[i + 1] : '\n');
      targets.push_back(i + 1);
    }
  // bytes [52, 64) and [118, 130)
  ASSERT_EQ(targets.size(), 24u);
  EXPECT_EQ(targets[0], 52u);
  EXPECT_EQ(targets[11], 63u);
  EXPECT_EQ(targets[12], 118u);
  EXPECT_EQ(targets[23], 129u);
  EXPECT_EQ(asked(all), "Yo<|im_end|>|Ok<|im_end|>");
  EXPECT_EQ(asked(tokens_of(kTalk, ChatTurns::last, 200)), "Ok<|im_end|>");
  // a question at the end asks for nothing
  std::vector<Message> open = kTalk;
  open.push_back({"user", "And?"});
  EXPECT_EQ(tokens_of(open, ChatTurns::all, 200).ids, all.ids);
}

TEST(ChatTokens, AnswersOfATemplateThatMarksNoneStandBehindItsBeginning) {
  const std::string plain =
      "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<end>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
  EXPECT_EQ(asked(tokens_of(kTalk, ChatTurns::all, 200, plain)), "Yo<end>|Ok<end>");
  EXPECT_EQ(asked(tokens_of(kTalk, ChatTurns::last, 200, plain)), "Ok<end>");
  // white space that was said is no end of a turn
  EXPECT_EQ(asked(tokens_of({{"user", "a"}, {"assistant", "b \n"}}, ChatTurns::all, 200,
                            "{% for m in messages %}{{ m.content }}{% endfor %}")),
            "b \n");
  // what it writes of an answer goes once another one follows
  const std::string strips =
      "{% for m in messages %}{{ '<' + m.role + '>' }}"
      "{% if loop.last or m.role == 'user' %}{{ m.content }}{% else %}{{ m.content[:1] }}{% endif "
      "%}{{ '<end>' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
  expect_error(ErrorKind::input, "message 2: the chat template writes what comes before",
               [&] { tokens_of(kTalk, ChatTurns::all, 200, strips); });
  EXPECT_EQ(asked(tokens_of({{"user", "a"}, {"assistant", "bc"}}, ChatTurns::last, 200, strips)),
            "bc<end>");
}

TEST(ChatTokens, OldTurnsGoWhereAllIsTooLong) {
  std::vector<Message> talk = kTalk;
  talk.insert(talk.begin(), {"system", "S"});
  const auto text_of = [&](int64_t length) {
    const ChatTokens chat = tokens_of(talk, ChatTurns::all, length);
    return std::string(chat.ids.begin(), chat.ids.end());
  };
  EXPECT_EQ(text_of(200).find("Hi"), text_of(200).find("user\nHi") + 5);
  const std::string cut = text_of(100);
  EXPECT_EQ(cut.find("Hi"), std::string::npos);
  EXPECT_TRUE(cut.starts_with("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nBye"));
  expect_error(
      ErrorKind::input,
      "the last question and its answer have 97 tokens; expected at most train.length + 1 = 61",
      [&] { text_of(60); });
  expect_error(ErrorKind::input, "no message of the assistant", [] {
    tokens_of({{"user", "Hi"}}, ChatTurns::all, 60);
  });
}

TEST(ChatTokens, PlacesCountBytesAlsoWithinCharacters) {
  const std::string text = "a\xC3\xA9z";
  EXPECT_EQ(token_places({'a', 0xC3, 0xA9, 'z'}, text, bytes()),
            (std::vector<size_t>{0, 1, 1, 3, 4}));
  expect_error(ErrorKind::input, "gives a conversation back as another text",
               [&] { token_places({'a'}, text, bytes()); });
}

TEST(ChatSource, SamplesAreConversations) {
  const TemporaryFolder folder;
  std::string lines = "\n";
  for (const char* name : {"a", "b", "c", "d", "e"})
    lines += line_of({{"user", name}, {"assistant", std::string(name) + "!"}});
  Json json = tiny_recipe(folder.write("talk.jsonl", lines));
  json["data"]["format"] = "jsonl";
  json["data"]["valid_fraction"] = 0.4;
  json["train"]["length"] = 80;
  json["objective"] = {{"type", "chat"}, {"format", "chatml"}};
  const Recipe recipe = read_recipe(json, "");
  EXPECT_EQ(resolve(recipe)["objective"]["format"], "chatml");
  const auto source = open_source(recipe, "unused");
  EXPECT_EQ(source->valid_samples(), 2);
  std::vector<int64_t> begun;
  // three are learned from, each once an epoch
  const PackedBatch batch = source->train(0, 6, begun);
  EXPECT_EQ(batch.pieces.size(), 6u);
  EXPECT_EQ(batch.n_targets, 6 * 12);
  std::string answers;
  for (size_t i = 0; i < batch.ids.size(); ++i)
    if (batch.targets[i] == '!') answers += static_cast<char>(batch.ids[i]);
  std::string first = answers.substr(0, 3), second = answers.substr(3);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, "abc");
  EXPECT_EQ(second, "abc");
  const auto same = source->train(3, 1, begun);
  EXPECT_EQ(
      std::vector<int64_t>(batch.ids.begin() + batch.pieces[3].begin,
                           batch.ids.begin() + batch.pieces[3].begin + batch.pieces[3].length),
      same.ids);
  json["objective"]["turns"] = "last";
  json["train"]["seed"] = 4;
  EXPECT_EQ(open_source(read_recipe(json, ""), "unused")->key(), source->key());
}

TEST(ChatSource, WhatIsWrongIsSaidWithItsLine) {
  const TemporaryFolder folder;
  const auto refuses = [&](ErrorKind kind, const std::string& line, const std::string& message) {
    Json json = tiny_recipe(
        folder.write("talk.jsonl", line_of({{"user", "a"}, {"assistant", "b"}}) + "\n" + line));
    json["data"]["format"] = "jsonl";
    json["data"].erase("valid_fraction");
    json["train"]["length"] = 80;
    json["objective"] = {{"type", "chat"}, {"format", "chatml"}};
    expect_error(kind, message, [&] { open_source(read_recipe(json, ""), "unused"); });
  };
  refuses(ErrorKind::file, "{\"messages\": 3}", "talk.jsonl: line 3: \"messages\" is ");
  refuses(ErrorKind::file, "{\"messages\": []}", "line 3: the list is empty");
  refuses(ErrorKind::file, "[1]", "line 3: found ");
  refuses(ErrorKind::file, "{}", "line 3: \"messages\" is missing");
  refuses(ErrorKind::file, R"({"messages": [{"role": "user"}]})",
          "line 3: message 1 has no string \"content\"");
  refuses(ErrorKind::input, line_of({{"user", "a"}, {"user", "b"}, {"assistant", "c"}}),
          "line 3: [chat template] message 2: role \"user\"");
  refuses(ErrorKind::input, line_of({{"user", "a"}}), "line 3: [chat] no message of the assistant");
  refuses(ErrorKind::input, line_of({{"user", std::string(90, 'a')}, {"assistant", "c"}}),
          "line 3: [chat] the last question and its answer have");
}

TEST(ChatRecipe, IsCheckedBeforeThereIsAFolder) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("talk.jsonl", line_of(kTalk)));
  json["objective"] = {{"type", "chat"}, {"format", "chatml"}};
  expect_error(ErrorKind::spec, "[data.format] found \"text\"; objective \"chat\" reads \"jsonl\"",
               [&] { read_recipe(json, ""); });
  json["data"]["format"] = "jsonl";
  Json other = json;
  other["objective"].erase("format");
  expect_error(ErrorKind::spec,
               "[objective.format] missing, and the tokenizer has no chat template",
               [&] { read_recipe(other, ""); });
  other["objective"]["format"] = "alpaca";
  expect_error(ErrorKind::spec,
               "[objective.format] found \"alpaca\"; expected one of chatml, llama3",
               [&] { read_recipe(other, ""); });
  other = json;
  other["data"]["source_key"] = "x";
  expect_error(ErrorKind::spec, "[data.source_key]", [&] { read_recipe(other, ""); });
}

}  // namespace
}  // namespace tessera::train::chat_source_test
