// Conversations to tune a model on: JSON lines of messages, of which the answers alone are targets,
// each with what ends it. Torch-free. A sample is a conversation; it begins at position 0.
#pragma once

#include <string_view>

#include "tessera/text/chat_prompt.h"
#include "tessera/text/tokenizer.h"
#include "tessera/train/chat_recipe.h"
#include "tessera/train/source.h"

namespace tessera::train {

/// Messages as a chat template takes them, and the tools that it is told of (null = none).
struct Conversation {
  Json messages = Json::array(), tools = nullptr;
};

/// That of an object: messages at `key`, tools at "tools". Throws Error(file) with what it found;
/// `where` begins the message.
Conversation conversation_in(const Json& json, const std::string& key, const std::string& where);
/// That of one line.
Conversation read_conversation(std::string_view line,
                               const std::string& key,
                               const std::string& where);

/// How a recipe writes conversations: in the format that it names, else by the tokenizer's own
/// template. Throws Error(spec) for an unknown name, and where there is none.
text::ChatPrompt prompts_of(const ChatRecipe& how, const text::Tokenizer& tokenizer);

/// A conversation up to its last answer, and that with what ends it; what stands behind is left out.
struct AnsweredPrompt {
  text::MarkedText prompt, answer;
};
/// Throws Error(input) as chat_tokens() does.
AnsweredPrompt last_answer(const Conversation& talk, const text::ChatPrompt& prompts);

/// Inputs of a conversation, and of each the token that follows it where that is part of an answer,
/// else -1.
struct ChatTokens {
  std::vector<int64_t> ids, targets;
};

/// The conversation as one text, tokenised whole. Answers are what its template marks as such; else
/// what stands behind the beginning of an answer, up to what ends it, and then a template must
/// write the messages before an answer as it writes them without it. Where it has more than
/// `length` inputs its oldest turns go, a question with all up to the next one, but for what the
/// system says. Throws Error(input) where no answer is there, or none fits, where the template
/// refuses the messages, and for a tokenizer that does not give a text back.
ChatTokens chat_tokens(Conversation talk,
                       ChatTurns turns,
                       const text::ChatPrompt& prompts,
                       const text::Tokenizer& tokenizer,
                       int64_t length);

/// Where each token begins in the text that it was made of, and where the last ends. Throws as
/// above.
std::vector<size_t> token_places(const std::vector<int32_t>& ids,
                                 std::string_view text,
                                 const text::Tokenizer& tokenizer);

/// The conversations of a recipe's files. Every line is read and tokenised before the first step:
/// what is wrong with one is said with its file and number.
std::unique_ptr<Source> open_chats(const Recipe& recipe,
                                   const ChatRecipe& how,
                                   const text::Tokenizer& tokenizer,
                                   const CancelToken* cancel);

}  // namespace tessera::train
