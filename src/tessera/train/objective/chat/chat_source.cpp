#include "tessera/train/data/data_file.h"
#include "tessera/train/objective/chat/chat_source.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "tessera/base/output_file.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/text/chat/chat_formats.h"
#include "tessera/train/data/example_lines.h"

namespace tessera::train {
namespace {

struct Chats {
  std::vector<ChatTokens> train, valid;
};

/// Every conversation is a document of its own.
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

class ChatSource final : public Dataset {
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

text::MarkedText rendered(const Conversation& talk, const text::ChatPrompt& prompts, bool asks) {
  return prompts.render({.messages = talk.messages,
                         .tools = talk.tools,
                         .add_generation_prompt = asks,
                         .variables = talk.variables});
}

/// A byte range of a text.
struct Span {
  size_t begin = 0, end = 0;
};

/// The spans that the template marks.
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

/// The marked answers that are targets.
std::vector<Span> learned(const std::vector<Span>& answers, const Json& messages) {
  std::vector<const Json*> said;
  for (const Json& message : messages)
    if (is_answer(message)) said.push_back(&message);
  const bool all =
      std::all_of(said.begin(), said.end(), [](const Json* m) { return is_learned(*m); });
  if (all) return answers;
  if (answers.size() != said.size())
    fail(ErrorKind::input, "chat",
         "{} of {} answers are marked as not learned, and the chat template marks {}; expected a "
         "template that marks every answer, or none",
         std::count_if(said.begin(), said.end(), [](const Json* m) { return !is_learned(*m); }),
         said.size(), answers.size());
  std::vector<Span> out;
  for (size_t i = 0; i < said.size(); ++i)
    if (is_learned(*said[i])) out.push_back(answers[i]);
  return out;
}

/// The answers that are targets with a template that marks none: only the last, or all.
std::vector<Span> between(const Conversation& talk,
                          const text::MarkedText& whole,
                          ChatTurns turns,
                          const text::ChatPrompt& prompts) {
  std::vector<Span> out;
  for (size_t i = talk.messages.size(); i-- > 0;) {
    if (!is_learned(talk.messages[i])) continue;
    const auto upto = [&](size_t n, bool asks) {
      Conversation first{Json::array(), talk.tools, talk.variables};
      for (size_t m = 0; m < n; ++m) first.messages.push_back(talk.messages[m]);
      return rendered(first, prompts, asks);
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
    // white space after the end of a turn belongs to no answer
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

/// Conversations that are too long.
class LeftOut {
 public:
  void add(const std::string& where, int64_t tokens) {
    if (count_++ == 0) first_ = fmt::format("{} has {} tokens", where, tokens);
    most_ = std::max(most_, tokens);
  }
  /// A line for notes(); "" if there are none.
  std::string note(int64_t length) const {
    if (count_ == 0) return "";
    return fmt::format(
        "{} conversation{} skipped: the last question and its answer have more than train.length "
        "+ "
        "1 = {} tokens ({}); train.length {} takes all",
        count_, count_ == 1 ? "" : "s", length + 1, first_, most_ - 1);
  }

 private:
  int64_t count_ = 0, most_ = 0;
  std::string first_;
};

/// Byte offsets of the tokens of a text.
struct PlacedTokens {
  std::vector<int32_t> ids;
  std::vector<size_t> places;
};

/// Inputs and targets. Targets are the tokens that begin in an answer.
ChatTokens with_targets(const PlacedTokens& tokens, const std::vector<Span>& answers) {
  ChatTokens out;
  for (size_t t = 0; t + 1 < tokens.ids.size(); ++t) {
    const size_t place = tokens.places[t + 1];
    const bool asked = std::any_of(answers.begin(), answers.end(), [&](const Span& answer) {
      return answer.begin <= place && place < answer.end;
    });
    out.ids.push_back(tokens.ids[t]);
    out.targets.push_back(asked ? tokens.ids[t + 1] : -1);
  }
  return out;
}

/// Drops messages after the last target.
void end_with_answer(Json& messages) {
  const auto has = [&](auto what) { return std::any_of(messages.begin(), messages.end(), what); };
  if (!has(is_answer))
    fail(ErrorKind::input, "chat", "no message of the assistant; expected an answer to learn");
  if (!has(is_learned))
    fail(ErrorKind::input, "chat",
         "every message of the assistant is marked as not learned (\"weight\": 0, \"train\": "
         "false); expected an answer to learn");
  while (!is_learned(messages.back())) messages.erase(messages.size() - 1);
}

/// Drops the oldest turn; false if only one is left.
bool drop_turn(Json& messages) {
  const size_t first = messages[0]["role"] == "system" || messages[0]["role"] == "developer";
  size_t next = first + 1;  // the second question
  while (next < messages.size() && messages[next]["role"] != "user") ++next;
  if (next >= messages.size()) return false;
  for (size_t i = first; i < next; ++i) messages.erase(first);
  return true;
}

}  // namespace

AnsweredPrompt last_answer(const Conversation& talk, const text::ChatPrompt& prompts) {
  const text::MarkedText whole = rendered(talk, prompts, /*asks=*/false);
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
  return {tokenizer, std::move(*source), how.format.value_or("the tokenizer's chat template"),
          text::template_clock(how.date, "objective.date")};
}

void write_chat_format(const ChatRecipe& how,
                       const TextData& data,
                       const std::filesystem::path& checkpoint) {
  if (!how.format || how.plain() || data.tokenizer == "bytes") return;
  write_file_atomically(checkpoint / "chat_template.jinja",
                        text::chat_format_source(*how.format).value());
  const Json ends = prompts_of(how, convert::find_tokenizer(data.tokenizer)).ends();
  if (ends.empty()) return;
  const std::filesystem::path file = checkpoint / "generation_config.json";
  Json generation =
      std::filesystem::is_regular_file(file) ? spec::read_json_file(file) : Json::object();
  generation["eos_token_id"] = ends;
  write_file_atomically(file, generation.dump(1));
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
  end_with_answer(talk.messages);
  for (;;) {
    const text::MarkedText text = rendered(talk, prompts, /*asks=*/false);
    PlacedTokens tokens{prompts.encode(text), {}};
    if (std::ssize(tokens.ids) - 1 > length) {
      if (drop_turn(talk.messages)) continue;
      return {{}, {}, std::ssize(tokens.ids)};
    }
    std::vector<Span> answers = text.answer.empty() ? between(talk, text, turns, prompts)
                                                    : learned(marked(text), talk.messages);
    if (answers.empty())
      fail(ErrorKind::input, "chat", "the template marks no answer; expected one to learn");
    if (turns == ChatTurns::last) answers = {answers.back()};
    tokens.places = token_places(tokens.ids, text.text, tokenizer);
    return with_targets(tokens, answers);
  }
}

ChatTokens completion_tokens(const PromptAndCompletion& text,
                             const text::Tokenizer& tokenizer,
                             int64_t length) {
  const std::string whole = text.prompt + text.completion;
  PlacedTokens tokens{tokenizer.encode(whole, {.add_special = false}), {}};
  if (tokens.ids.empty())
    fail(ErrorKind::input, "chat", "prompt and completion have no token; expected some");
  tokens.places = token_places(tokens.ids, whole, tokenizer);
  // special tokens before and after a text
  std::vector<int32_t> around = tokenizer.surround({});
  if (!around.empty() && around.back() == tokenizer.eos()) around.pop_back();
  tokens.ids.insert(tokens.ids.begin(), around.begin(), around.end());
  tokens.places.insert(tokens.places.begin(), around.size(), 0);
  if (const auto eos = tokenizer.eos()) tokens.ids.push_back(*eos);
  // the end-of-text token begins at the end of the completion
  ChatTokens out = with_targets(tokens, {{text.prompt.size(), whole.size() + 1}});
  const int64_t over = std::ssize(out.ids) - length;
  if (over <= 0) return out;
  const auto first = std::find_if(out.targets.begin(), out.targets.end(),
                                  [](int64_t target) { return target >= 0; });
  // at least one prompt token stays, so that the first target has an input
  if (over > first - out.targets.begin()) return {{}, {}, std::ssize(tokens.ids)};
  out.ids.erase(out.ids.begin(), out.ids.begin() + over);
  out.targets.erase(out.targets.begin(), out.targets.begin() + over);
  return out;
}

ChatReader::ChatReader(ChatRecipe how, const text::Tokenizer& tokenizer, int64_t length)
    : how_(std::move(how)), tokenizer_(tokenizer), length_(length) {
  if (!how_.plain()) prompts_ = prompts_of(how_, tokenizer_);
}

ChatTokens ChatReader::tokens_of(const Json& example, const std::string& where) const {
  if (prompts_)
    return chat_tokens(conversation_in(example, how_.messages_key, where), how_.turns, *prompts_,
                       tokenizer_, length_);
  if (const auto text = prompt_and_completion(example))
    return completion_tokens(*text, tokenizer_, length_);
  fail(ErrorKind::input, "chat",
       "no strings \"prompt\" and \"completion\", which objective.format \"none\" joins; expected "
       "them, or another format");
}

namespace {

bool calls_tools(const Json& example, const std::string& messages_key) {
  if (!example.is_object()) return false;
  const auto calls = [&](const std::string& key) {
    const Json messages = example.value(key, Json());
    return messages.is_array() &&
           std::any_of(messages.begin(), messages.end(), [](const Json& message) {
             return message.is_object() && !message.value("tool_calls", Json()).empty();
           });
  };
  return calls(messages_key) || calls("conversations");
}

}  // namespace

ChatTokens ChatReader::of(const Json& example, const std::string& where) const {
  refuse_unpaired(example, where);
  try {
    return tokens_of(example, where);
  } catch (const Error& error) {
    // errors of the file have their place already
    if (error.kind() != ErrorKind::input) throw;
    fail(error.kind(), "data", "{}: {}{}", where, without_place(error, "data"),
         calls_tools(example, how_.messages_key) && prompts_
             ? "; a message calls a tool, which this chat template may not know: expected a model "
               "whose template does, or messages with \"content\""
             : "");
  }
}

std::unique_ptr<Dataset> open_chats(const DataPlan& plan,
                                    const ChatRecipe& how,
                                    const text::Tokenizer& tokenizer,
                                    const CancelToken* cancel) {
  const TextData& data = plan.data.files();
  const ChatReader reader(how, tokenizer, plan.train.length);
  Sha256 key;
  Chats chats;
  LeftOut left;
  for_examples(data, key, cancel, [&](const ExampleLine& line) {
    ChatTokens chat = reader.of(line.object, line.where);
    for (const int64_t id : chat.ids)
      if (id >= plan.spec.vocab)
        fail(ErrorKind::input, "data", "{}: token id {}; the spec has a vocabulary of {}",
             line.where, id, plan.spec.vocab);
    if (chat.too_long())
      left.add(line.where, chat.needs);
    else
      (line.held_out ? chats.valid : chats.train).push_back(std::move(chat));
  });
  const std::string note = left.note(plan.train.length);
  try {
    check_examples(data, chats.train.size(), chats.valid.size(), "conversation");
  } catch (const Error& error) {
    if (note.empty()) throw;
    fail(error.kind(), "data", "{}: {}", without_place(error, "data"), note);
  }
  // tokens depend on the texts and the tokenizer: all of them are hashed
  for (const auto* split : {&chats.train, &chats.valid})
    for (const ChatTokens& chat : *split)
      key.update(std::string_view(reinterpret_cast<const char*>(chat.ids.data()),
                                  chat.ids.size() * sizeof(int64_t)));
  auto source = std::make_unique<ChatSource>(std::move(chats), key.finish(), plan.train.seed);
  if (!note.empty()) source->remark(note);
  return source;
}

}  // namespace tessera::train
