#include "tessera/train/chat_source.h"

#include <algorithm>

#include "tessera/train/example_lines.h"

namespace tessera::train {
namespace {

using text::ChatMessage;

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

bool answers(const std::vector<ChatMessage>& messages) {
  return std::any_of(messages.begin(), messages.end(),
                     [](const ChatMessage& message) { return message.role == "assistant"; });
}

}  // namespace

std::vector<ChatMessage> messages_in(const Json& object,
                                     const std::string& key,
                                     const std::string& where) {
  const auto bad = [&](const std::string& what) {
    fail(
        ErrorKind::file, "data",
        "{}: {}; expected an object with a list \"{}\" of messages, each with strings \"role\" and "
        "\"content\"",
        where, what, key);
  };
  if (!object.is_object()) bad(fmt::format("found {}", spec::kind_of(object)));
  const auto list = object.find(key);
  if (list == object.end()) bad(fmt::format("\"{}\" is missing", key));
  if (!list->is_array() || list->empty())
    bad(list->is_array() ? "the list is empty"
                         : fmt::format("\"{}\" is {}", key, spec::kind_of(*list)));
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& one = (*list)[i];
    const auto string_at = [&](const char* name) {
      const auto found = one.is_object() ? one.find(name) : one.end();
      if (!one.is_object() || found == one.end() || !found->is_string())
        bad(fmt::format("message {} has no string \"{}\"", i + 1, name));
      return found->get<std::string>();
    };
    out.push_back({string_at("role"), string_at("content")});
  }
  return out;
}

std::vector<ChatMessage> read_messages(std::string_view line,
                                       const std::string& key,
                                       const std::string& where) {
  return messages_in(spec::parse_json(line, where), key, where);
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

ChatTokens chat_tokens(std::vector<ChatMessage> messages,
                       const ChatRecipe& how,
                       const text::Tokenizer& tokenizer,
                       int64_t length) {
  // a question at the end has no answer to learn
  while (!messages.empty() && messages.back().role != "assistant") messages.pop_back();
  if (!answers(messages))
    fail(ErrorKind::input, "chat", "no message of the assistant; expected an answer to learn");
  const auto first_turn = static_cast<std::ptrdiff_t>(messages.front().role == "system" ? 1 : 0);
  for (;;) {
    const text::ChatText chat = text::render_chat(text::chat_format(how.format), messages);
    const std::vector<int32_t> ids =
        tokenizer.encode(chat.text, {.add_special = false, .parse_special = true});
    if (std::ssize(ids) - 1 > length) {
      if (std::ssize(messages) - first_turn <= 2)
        fail(ErrorKind::input, "chat",
             "the last question and its answer have {} tokens; expected at most train.length + 1 = "
             "{}",
             ids.size(), length + 1);
      messages.erase(messages.begin() + first_turn, messages.begin() + first_turn + 2);
      continue;
    }
    const std::vector<size_t> places = token_places(ids, chat.text, tokenizer);
    ChatTokens out;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const size_t place = places[t + 1];
      const bool asked = std::any_of(
          chat.answers.begin() + (how.turns == ChatTurns::last ? std::ssize(chat.answers) - 1 : 0),
          chat.answers.end(), [&](const text::ChatText::Span& answer) {
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
  Sha256 key;
  Chats chats;
  const auto tokens_of = [&](std::string_view line, const std::string& where) {
    std::vector<ChatMessage> messages = read_messages(line, how.messages_key, where);
    try {
      ChatTokens chat = chat_tokens(std::move(messages), how, tokenizer, recipe.train.length);
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
