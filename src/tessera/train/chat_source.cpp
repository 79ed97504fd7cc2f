#include "tessera/train/chat_source.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "tessera/text/chat_formats.h"
#include "tessera/train/example_lines.h"

namespace tessera::train {
namespace {

struct Chats {
  std::vector<ChatTokens> train, valid;
};

/// Every conversation is a piece of its own.
PackedBatch packed(const std::vector<ChatTokens>& chats, const std::vector<int64_t>& numbers) {
  PackedBatch out;
  for (const int64_t number : numbers) {
    const ChatTokens& chat = chats.at(static_cast<size_t>(number));
    out.pieces.push_back({static_cast<int64_t>(out.pieces.size()),
                          static_cast<int64_t>(out.ids.size()), std::ssize(chat.ids)});
    out.ids.insert(out.ids.end(), chat.ids.begin(), chat.ids.end());
    out.targets.insert(out.targets.end(), chat.targets.begin(), chat.targets.end());
  }
  out.n_targets =
      std::ssize(out.targets) - std::count(out.targets.begin(), out.targets.end(), int64_t{-1});
  return out;
}

class ChatSource final : public Source {
 public:
  ChatSource(Chats chats, std::string key, int64_t seed)
      : chats_(std::move(chats)),
        key_(std::move(key)),
        order_(std::ssize(chats_.train), static_cast<uint64_t>(seed)) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<int64_t> numbers;
    for (int64_t sample = first; sample < first + count; ++sample)
      numbers.push_back(order_.at(sample));
    PackedBatch batch = packed(chats_.train, numbers);
    batch.first_sample = first;
    return batch;
  }
  int64_t valid_samples() const override { return std::ssize(chats_.valid); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    return packed(chats_.valid, samples);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  Chats chats_;
  std::string key_;
  PairOrder order_;
};

bool is_answer(const Json& message) {
  return message["role"] == "assistant";
}

/// Bytes of a text.
struct Span {
  size_t begin = 0, end = 0;
};

/// What the template marks.
std::vector<Span> marked(const text::MarkedText& text) {
  std::vector<Span> out;
  for (size_t i = 0; i < text.answer.size(); ++i) {
    if (text.answer[i] == 0) continue;
    if (!out.empty() && out.back().end == i)
      ++out.back().end;
    else
      out.push_back({i, i + 1});
  }
  return out;
}

/// Answers of a template that marks none, the last alone or all.
std::vector<Span> between(const Conversation& talk,
                          const text::MarkedText& whole,
                          ChatTurns turns,
                          const text::ChatPrompt& prompts) {
  std::vector<Span> out;
  for (size_t i = talk.messages.size(); i-- > 0;) {
    if (!is_answer(talk.messages[i])) continue;
    const auto upto = [&](size_t n, bool asks) {
      Json first = Json::array();
      for (size_t m = 0; m < n; ++m) first.push_back(talk.messages[m]);
      return prompts.render(
          {.messages = std::move(first), .tools = talk.tools, .add_generation_prompt = asks});
    };
    const text::MarkedText before = upto(i, true), with = upto(i + 1, false);
    if (!whole.text.starts_with(before.text) || !whole.text.starts_with(with.text) ||
        with.text.size() <= before.text.size())
      fail(ErrorKind::input, "chat",
           "message {}: the chat template writes what comes before this answer, or the answer, "
           "otherwise where more follows; expected turns \"last\", another \"format\", or a "
           "template "
           "that marks its answers",
           i + 1);
    // white space behind what ends a turn belongs to none
    size_t end = with.text.size();
    while (end > before.text.size() && with.input[end - 1] == 0 &&
           std::string_view(" \t\r\n").find(with.text[end - 1]) != std::string_view::npos)
      --end;
    const bool open = end == before.text.size() || with.input[end - 1] != 0;
    out.insert(out.begin(), {before.text.size(), open ? with.text.size() : end});
    if (turns == ChatTurns::last) break;
  }
  return out;
}

}  // namespace

Conversation conversation_in(const Json& json, const std::string& key, const std::string& where) {
  const auto bad = [&](const std::string& what) {
    fail(
        ErrorKind::file, "data",
        "{}: {}; expected an object with a list \"{}\" of messages, each with strings \"role\" and "
        "\"content\"",
        where, what, key);
  };
  if (!json.is_object()) bad(fmt::format("found {}", spec::kind_of(json)));
  const auto list = json.find(key);
  if (list == json.end()) bad(fmt::format("\"{}\" is missing", key));
  if (!list->is_array() || list->empty())
    bad(list->is_array() ? "the list is empty"
                         : fmt::format("\"{}\" is {}", key, spec::kind_of(*list)));
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& one = (*list)[i];
    const auto has_string = [&](const char* name) {
      return one.is_object() && one.contains(name) && one[name].is_string();
    };
    if (!has_string("role")) bad(fmt::format("message {} has no string \"role\"", i + 1));
    // what calls a tool may say nothing
    if (!has_string("content") && !one.contains("tool_calls"))
      bad(fmt::format("message {} has no string \"content\"", i + 1));
  }
  Conversation out{*list, json.value("tools", Json())};
  if (!out.tools.is_null() && !out.tools.is_array())
    bad(fmt::format("\"tools\" is {}, no list", spec::kind_of(out.tools)));
  return out;
}

Conversation read_conversation(std::string_view line,
                               const std::string& key,
                               const std::string& where) {
  return conversation_in(spec::parse_json(line, where), key, where);
}

AnsweredPrompt last_answer(const Conversation& talk, const text::ChatPrompt& prompts) {
  const text::MarkedText whole = prompts.render(
      {.messages = talk.messages, .tools = talk.tools, .add_generation_prompt = false});
  const std::vector<Span> answers =
      whole.answer.empty() ? between(talk, whole, ChatTurns::last, prompts) : marked(whole);
  if (answers.empty())
    fail(ErrorKind::input, "chat", "the template marks no answer; expected one to learn");
  const auto part = [&](size_t begin, size_t end) {
    return text::MarkedText{whole.text.substr(begin, end - begin),
                            whole.input.substr(begin, end - begin)};
  };
  return {part(0, answers.back().begin), part(answers.back().begin, answers.back().end)};
}

text::ChatPrompt prompts_of(const ChatRecipe& how, const text::Tokenizer& tokenizer) {
  std::optional<std::string> source =
      how.format ? text::chat_format_source(*how.format) : tokenizer.chat_template();
  if (!source || source->empty())
    fail(ErrorKind::spec, "objective.format", "{}; expected one of {}",
         how.format ? fmt::format("found \"{}\"", *how.format)
                    : "missing, and the tokenizer has no chat template",
         fmt::join(text::chat_format_names(), ", "));
  return {tokenizer, std::move(*source), how.format.value_or("the tokenizer's chat template")};
}

std::vector<size_t> token_places(const std::vector<int32_t>& ids,
                                 std::string_view text,
                                 const text::Tokenizer& tokenizer) {
  text::StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  std::vector<size_t> places;
  std::string said;
  for (const int32_t id : ids) {
    places.push_back(said.size());
    said += decoder.push(id);
  }
  said += decoder.finish();
  if (said != text)
    fail(ErrorKind::input, "chat",
         "the tokenizer gives a conversation back as another text, so that its answers cannot be "
         "found among the tokens; expected one that keeps every character");
  places.push_back(said.size());
  return places;
}

ChatTokens chat_tokens(Conversation talk,
                       ChatTurns turns,
                       const text::ChatPrompt& prompts,
                       const text::Tokenizer& tokenizer,
                       int64_t length) {
  Json& messages = talk.messages;
  // a question at the end has no answer to learn
  while (!messages.empty() && !is_answer(messages.back())) messages.erase(messages.size() - 1);
  if (messages.empty())
    fail(ErrorKind::input, "chat", "no message of the assistant; expected an answer to learn");
  const size_t first_turn = messages[0]["role"] == "system" || messages[0]["role"] == "developer";
  for (;;) {
    const text::MarkedText text =
        prompts.render({.messages = messages, .tools = talk.tools, .add_generation_prompt = false});
    const std::vector<int32_t> ids = prompts.encode(text);
    if (std::ssize(ids) - 1 > length) {
      size_t next = first_turn + 1;  // the second question
      while (next < messages.size() && messages[next]["role"] != "user") ++next;
      if (next >= messages.size())
        fail(ErrorKind::input, "chat",
             "the last question and its answer have {} tokens; expected at most train.length + 1 = "
             "{}",
             ids.size(), length + 1);
      for (size_t i = first_turn; i < next; ++i) messages.erase(first_turn);
      continue;
    }
    std::vector<Span> answers =
        text.answer.empty() ? between(talk, text, turns, prompts) : marked(text);
    if (answers.empty())
      fail(ErrorKind::input, "chat", "the template marks no answer; expected one to learn");
    if (turns == ChatTurns::last) answers = {answers.back()};
    const std::vector<size_t> places = token_places(ids, text.text, tokenizer);
    ChatTokens out;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const size_t place = places[t + 1];
      const bool asked = std::any_of(answers.begin(), answers.end(), [&](const Span& answer) {
        return answer.begin <= place && place < answer.end;
      });
      out.ids.push_back(ids[t]);
      out.targets.push_back(asked ? ids[t + 1] : -1);
    }
    return out;
  }
}

std::unique_ptr<Source> open_chats(const Recipe& recipe,
                                   const ChatRecipe& how,
                                   const text::Tokenizer& tokenizer,
                                   const CancelToken* cancel) {
  const DataRecipe& data = recipe.data;
  const text::ChatPrompt prompts = prompts_of(how, tokenizer);
  Sha256 key;
  Chats chats;
  const auto tokens_of = [&](std::string_view line, const std::string& where) {
    Conversation talk = read_conversation(line, how.messages_key, where);
    try {
      ChatTokens chat =
          chat_tokens(std::move(talk), how.turns, prompts, tokenizer, recipe.train.length);
      for (const int64_t id : chat.ids)
        if (id >= recipe.spec.vocab)
          fail(ErrorKind::input, "chat", "token id {}; the spec has a vocabulary of {}", id,
               recipe.spec.vocab);
      return chat;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::cancelled) throw;
      fail(error.kind(), "data", "{}: {}", where, error.what());
    }
  };
  for_examples(data, key, cancel, [&](const ExampleLine& line) {
    (line.held_out ? chats.valid : chats.train).push_back(tokens_of(line.text, line.where));
  });
  check_examples(data, chats.train.size(), chats.valid.size(), "conversation");
  // tokens follow from the texts and the tokenizer: what it makes of all of them tells it
  for (const auto* split : {&chats.train, &chats.valid})
    for (const ChatTokens& chat : *split)
      key.update(std::string_view(reinterpret_cast<const char*>(chat.ids.data()),
                                  chat.ids.size() * sizeof(int64_t)));
  return std::make_unique<ChatSource>(std::move(chats), key.finish(), recipe.train.seed);
}

}  // namespace tessera::train
