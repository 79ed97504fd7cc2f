// Conversations to tune a model on: JSON lines of messages, of which the answers alone are targets,
// each with what ends it. Torch-free. A sample is a conversation; it begins at position 0.
#pragma once

#include <string_view>

#include "tessera/text/chat_format.h"
#include "tessera/text/tokenizer.h"
#include "tessera/train/chat_recipe.h"
#include "tessera/train/source.h"

namespace tessera::train {

/// The messages of a line, the object that it is. Throws Error(file) with what it found; `where`
/// begins the message.
std::vector<text::ChatMessage> messages_in(const Json& object,
                                           const std::string& key,
                                           const std::string& where);
/// The messages of one line. Throws as above.
std::vector<text::ChatMessage> read_messages(std::string_view line,
                                             const std::string& key,
                                             const std::string& where);

/// Inputs of a conversation, and of each the token that follows it where that is part of an answer,
/// else -1.
struct ChatTokens {
  std::vector<int64_t> ids, targets;
};

/// The conversation as one text, tokenised whole. Where it has more than `length` inputs its oldest
/// turns go, a question with its answer, but for what the system says. Throws Error(input) where no
/// answer is there, or none fits, where messages are out of turn, and for a tokenizer that does not
/// give a text back.
ChatTokens chat_tokens(std::vector<text::ChatMessage> messages,
                       const ChatRecipe& how,
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
