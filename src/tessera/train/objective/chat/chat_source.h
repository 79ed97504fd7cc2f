// Conversations for supervised fine-tuning: JSON lines of messages; only answers and their end are
// targets. Torch-free. A sample is one conversation, which begins at position 0.
#pragma once

#include <string_view>

#include "tessera/text/chat/chat_prompt.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/chat_data.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/chat/chat_recipe.h"

namespace tessera::train {

/// The chat template of a recipe: the named format, otherwise the tokenizer's own. Throws
/// Error(spec) for an unknown name, and if there is none.
text::ChatPrompt prompts_of(const ChatRecipe& how, const text::Tokenizer& tokenizer);

/// Writes the template of a format and its stop tokens next to a checkpoint whose tokenizer has no
/// template or another one: chat_template.jinja, "eos_token_id" of generation_config.json. Does
/// nothing if the recipe names no format.
void write_chat_format(const ChatRecipe& how,
                       const TextData& data,
                       const std::filesystem::path& checkpoint);

/// A conversation up to its last answer, and that answer with its end; later messages are left out.
struct AnsweredPrompt {
  text::MarkedText prompt, answer;
};
/// Throws Error(input) as chat_tokens() does.
AnsweredPrompt last_answer(const Conversation& talk, const text::ChatPrompt& prompts);

/// Inputs of a conversation, and for each the next token if that belongs to an answer, else -1.
struct ChatTokens {
  std::vector<int64_t> ids, targets;
  /// Of a conversation that is too long: tokens of its last question and answer; ids are empty
  /// then.
  int64_t needs = 0;
  bool too_long() const { return needs > 0; }
};

/// A prompt and its completion as one text without a template. Targets are the tokens that begin in
/// the completion, and the end of text. A text that is too long loses the beginning of its prompt.
ChatTokens completion_tokens(const PromptAndCompletion& text,
                             const text::Tokenizer& tokenizer,
                             int64_t length);

/// The conversation as one text, tokenized as a whole. Answers are the spans that its template
/// marks ({% generation %}); otherwise the text after the beginning of an answer up to its end, and
/// then a template must write the messages before an answer in the same way without it. Answers
/// with weight 0 are no targets, and text after the last target is dropped. A conversation with
/// more than `length` inputs loses its oldest turns (a question and everything up to the next one),
/// but keeps the system prompt; too_long() if that does not suffice. Throws Error(input) without a
/// target, if the template rejects the messages, and for a tokenizer that does not reproduce a
/// text.
ChatTokens chat_tokens(Conversation talk,
                       ChatTurns turns,
                       const text::ChatPrompt& prompts,
                       const text::Tokenizer& tokenizer,
                       int64_t length);

/// The byte offset of each token in its text, and of the end. Throws as above.
std::vector<size_t> token_places(const std::vector<int32_t>& ids,
                                 std::string_view text,
                                 const text::Tokenizer& tokenizer);

/// Tokenizes the examples of one recipe.
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
  std::optional<text::ChatPrompt> prompts_;  // none for a recipe without a template
};

/// The conversations of a recipe's files. Every line is read and tokenized before the first step;
/// errors name file and line. Conversations that are too long are skipped, and notes() has their
/// number; throws Error(input) if none is left.
std::unique_ptr<Dataset> open_chats(const DataPlan& plan,
                                    const ChatRecipe& how,
                                    const text::Tokenizer& tokenizer,
                                    const CancelToken* cancel);

}  // namespace tessera::train
