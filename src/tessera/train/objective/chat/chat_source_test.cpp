#include "tessera/train/objective/chat/chat_source.h"

#include "tessera/convert/tokenizer.h"
#include "tessera/text/chat/chat_formats.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"
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
  return chat_tokens(conversation_in(json_of(line_of(messages)), "messages", "line"), turns,
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
  const ChatTokens none = tokens_of(talk, ChatTurns::all, 60);
  EXPECT_TRUE(none.too_long());
  EXPECT_EQ(none.needs, 97);
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
  refuses(ErrorKind::file, "{\"text\": \"a\"}", "line 3: \"messages\" is missing; found \"text\"");
  refuses(ErrorKind::file, R"({"messages": [{"role": "user"}]})",
          "line 3: message 1 has no string \"content\"");
  refuses(ErrorKind::input, line_of({{"user", "a"}, {"user", "b"}, {"assistant", "c"}}),
          "line 3: [chat template] message 2: role \"user\"");
  refuses(ErrorKind::input, line_of({{"user", "a"}}), "line 3: [chat] no message of the assistant");
}

TEST(ChatSource, WhatIsTooLongIsLeftOutAndCounted) {
  const TemporaryFolder folder;
  const auto source_of = [&](const std::string& lines) {
    Json json = tiny_recipe(folder.write("talk.jsonl", lines));
    json["data"]["format"] = "jsonl";
    json["data"].erase("valid_fraction");
    json["train"]["length"] = 80;
    json["objective"] = {{"type", "chat"}, {"format", "chatml"}};
    return open_source(read_recipe(json, ""), "unused");
  };
  const std::string fits = line_of({{"user", "a"}, {"assistant", "b"}}),
                    large = line_of({{"user", std::string(90, 'a')}, {"assistant", "c"}});
  const auto source = source_of(large + fits);
  ASSERT_EQ(source->notes().size(), 1u);
  EXPECT_NE(source->notes()[0].find("1 conversation skipped"), std::string::npos);
  EXPECT_NE(
      source->notes()[0].find("talk.jsonl: line 1 has 152 tokens); train.length 151 takes all"),
      std::string::npos)
      << source->notes()[0];
  expect_error(ErrorKind::input, "the train split has no conversation; expected at least one: 1 ",
               [&] { source_of(large); });
}

/// Messages with what they say of their own training.
std::string asked_of(const std::string& messages, ChatTurns turns = ChatTurns::all) {
  static const std::string source = text::chat_format_source("chatml").value();
  return asked(
      chat_tokens(conversation_in(json_of(R"({"messages": )" + messages + "}"), "messages", "line"),
                  turns, {bytes(), source, "test"}, bytes(), 400));
}

TEST(ChatTokens, AnswersThatSayTheyAreNotLearnedAreRead) {
  const auto talk = [](const std::string& first, const std::string& second) {
    return R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo")" + first +
           R"(}, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Ok")" +
           second + "}]";
  };
  for (const char* off : {R"(, "weight": 0)", R"(, "train": false)", R"(, "loss": false)"}) {
    EXPECT_EQ(asked_of(talk(off, "")), "Ok<|im_end|>") << off;
    // what stands behind the last answer that is learned teaches nothing
    EXPECT_EQ(asked_of(talk("", off)), "Yo<|im_end|>") << off;
    EXPECT_EQ(asked_of(talk("", off), ChatTurns::last), "Yo<|im_end|>") << off;
    expect_error(ErrorKind::input, "every message of the assistant is marked as not learned",
                 [&] { asked_of(talk(off, off)); });
  }
  for (const char* on : {R"(, "weight": 1)", R"(, "weight": 1.0)", R"(, "train": true)",
                         R"(, "weight": null)", R"(, "train_detail": null)"})
    EXPECT_EQ(asked_of(talk(on, "")), "Yo<|im_end|>|Ok<|im_end|>") << on;
  const auto bad = [&](const char* key, const char* what) {
    expect_error(ErrorKind::file, what, [&] { asked_of(talk(key, "")); });
  };
  bad(R"(, "weight": 0.5)", "line: message 2: \"weight\" is 0.5; expected 0 or 1");
  bad(R"(, "train": "no")", "message 2: \"train\" is a string; expected true or false");
  bad(R"(, "weight": 1, "train": false)", "message 2: \"train\" contradicts another key");
  bad(R"(, "train_detail": [{"begin_offset": 0}])",
      "message 2: \"train_detail\" chooses parts of a message");
  expect_error(ErrorKind::file, "message 1 of \"user\" is to be learned", [] {
    asked_of(R"([{"role": "user", "content": "a", "train": true},
                 {"role": "assistant", "content": "b"}])");
  });
  EXPECT_EQ(asked_of(R"([{"role": "user", "content": "a", "weight": 0},
                         {"role": "assistant", "content": "b"}])"),
            "b<|im_end|>");
}

TEST(ChatTokens, ATemplateThatMarksAnswersIsAskedForThoseThatAreLearned) {
  const std::string marks =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}|{% endfor %}";
  const auto talk = [](const char* second) {
    return conversation_in(json_of(fmt::format(R"({{"messages": [{{"role": "user", "content": "a"}},
            {{"role": "assistant", "content": "one", "weight": 0}},
            {{"role": "user", "content": "b"}}, {{"role": "assistant", "content": "{}"}}]}})",
                                               second)),
                           "messages", "line");
  };
  EXPECT_EQ(asked(chat_tokens(talk("two"), ChatTurns::all, {bytes(), marks, "test"}, bytes(), 99)),
            "two");
  const std::string last =
      "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}|{% endfor %}";
  expect_error(ErrorKind::input, "1 of 2 answers are marked as not learned, and the chat template",
               [&] {
                 chat_tokens(talk("two"), ChatTurns::all, {bytes(), last, "test"}, bytes(), 99);
               });
}

TEST(CompletionTokens, PromptsAreReadAndCompletionsLearned) {
  const auto chat = [](const char* prompt, const char* completion, int64_t length) {
    return completion_tokens({prompt, completion}, bytes(), length);
  };
  const ChatTokens whole = chat("The sky is", " blue.", 100);
  EXPECT_EQ(std::string(whole.ids.begin(), whole.ids.end()), "The sky is blue");
  EXPECT_EQ(asked(whole), " blue.");
  // one that is too long loses the beginning of its prompt
  const ChatTokens cut = chat("The sky is", " blue.", 8);
  EXPECT_EQ(std::string(cut.ids.begin(), cut.ids.end()), " is blue");
  EXPECT_EQ(asked(cut), " blue.");
  EXPECT_TRUE(chat("The sky is", " blue.", 5).too_long());
}

/// Tokens "a" and "b", and a chat template.
text::Tokenizer tokenizer_with(const std::string& chat_template) {
  Json file = text::empty_tokenizer_json(Json::array());
  file["pre_tokenizer"] = file["decoder"] = text::byte_level_json(true);
  file["model"] = text::bpe_json({{"a", 0}, {"b", 1}}, Json::array());
  return text::tokenizer_from_json(file.dump(), "t",
                                   {Json{{"chat_template", chat_template}}.dump()});
}

// A recipe gives the same samples on every day.
TEST(ChatRecipe, TemplatesAreToldItsDay) {
  const text::Tokenizer tokenizer = tokenizer_with("{{ strftime_now('%Y-%m-%d') }}");
  const auto shown = [&](const ChatRecipe& how) {
    return prompts_of(how, tokenizer)
        .render({.messages = Json::array({{{"role", "user"}, {"content", "a"}}})})
        .text;
  };
  EXPECT_EQ(shown({}), kTemplateDate);
  ChatRecipe dated;
  dated.date = "2024-07-26";
  EXPECT_EQ(shown(dated), "2024-07-26");
  dated.date = "July";
  expect_error(ErrorKind::usage, "[objective.date] found \"July\"; expected today, none or a day",
               [&] { shown(dated); });
}

TEST(ChatReader, AToolCallThatTheTemplateDoesNotKnowIsNamed) {
  const text::Tokenizer tokenizer =
      tokenizer_with("{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}");
  const ChatReader reader({}, tokenizer, 100);
  expect_error(ErrorKind::input, "a message calls a tool, which this chat template may not know",
               [&] {
                 reader.of(json_of(R"({"messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "content": null, "tool_calls": [{"type": "function",
                 "function": {"name": "f", "arguments": "{}"}}]}]})"),
                           "a.jsonl: line 1");
               });
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
