// Conversations to tune a model on: JSON lines of messages, of which the answers alone are targets,
// each with what ends it. Torch-free. A sample is a conversation; it begins at position 0.
#pragma once

#include <string_view>

#include "tessera/text/chat/chat_prompt.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/chat_data.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/chat/chat_recipe.h"

namespace tessera::train {

/// How a recipe writes conversations: in the format that it names, else by the tokenizer's own
/// template. Throws Error(spec) for an unknown name, and where there is none.
text::ChatPrompt prompts_of(const ChatRecipe& how, const text::Tokenizer& tokenizer);

/// Puts the template of a format, and what ends its answers, beside a checkpoint, whose tokenizer
/// has no template of its own or another one: chat_template.jinja, "eos_token_id" of
/// generation_config.json. Nothing where the recipe names no format.
void write_chat_format(const ChatRecipe& how,
                       const DataRecipe& data,
                       const std::filesystem::path& checkpoint);

/// A conversation up to its last answer, and that with what ends it; what stands behind is left
/// out.
struct AnsweredPrompt {
  text::MarkedText prompt, answer;
};
/// Throws Error(input) as chat_tokens() does.
AnsweredPrompt last_answer(const Conversation& talk, const text::ChatPrompt& prompts);

/// Inputs of a conversation, and of each the token that follows it where that is part of an answer,
/// else -1.
struct ChatTokens {
  std::vector<int64_t> ids, targets;
  /// Of one that is too long: how many tokens its last question and answer have; no ids then.
  int64_t needs = 0;
  bool too_long() const { return needs > 0; }
};

/// A prompt and what follows it as one text, without a template: tokens that begin in the
/// completion are targets, and then the end of text. One that is too long loses the beginning of
/// its prompt.
ChatTokens completion_tokens(const PromptAndCompletion& text,
                             const text::Tokenizer& tokenizer,
                             int64_t length);

/// The conversation as one text, tokenised whole. Answers are what its template marks as such; else
/// what stands behind the beginning of an answer, up to what ends it, and then a template must
/// write the messages before an answer as it writes them without it. Answers that say so are not
/// learned, and what stands behind the last that is goes. Where it has more than `length` inputs
/// its oldest turns go, a question with all up to the next one, but for what the system says;
/// too_long() where that does not suffice. Throws Error(input) where no answer is to be learned,
/// where the template refuses the messages, and for a tokenizer that does not give a text back.
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

/// Examples of one recipe as tokens.
class ChatReader {
 public:
  /// Throws what prompts_of() throws.
  ChatReader(ChatRecipe how, const text::Tokenizer& tokenizer, int64_t length);
  /// Throws Error(file) and Error(input) that begin with `where`.
  ChatTokens of(const Json& example, const std::string& where) const;

 private:
  ChatTokens tokens_of(const Json& example, const std::string& where) const;
  ChatRecipe how_;
  text::Tokenizer tokenizer_;
  int64_t length_;
  std::optional<text::ChatPrompt> prompts_;  // none where a recipe wants none
};

/// The conversations of a recipe's files. Every line is read and tokenised before the first step:
/// what is wrong with one is said with its file and number. Those that are too long are left out,
/// and notes() says how many; throws Error(input) where none is left.
std::unique_ptr<Dataset> open_chats(const Recipe& recipe,
                                    const ChatRecipe& how,
                                    const text::Tokenizer& tokenizer,
                                    const CancelToken* cancel);

}  // namespace tessera::train
