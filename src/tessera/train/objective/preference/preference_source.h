// Preference pairs from JSON lines. Torch-free. A sample is a pair: two documents of one row, the
// prompt with the chosen answer and with the rejected one. Targets are the answers' tokens and
// their end.
//
//   {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
//   {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
//   {"prompt": [{"role": "user", "content": ..}], "chosen": [{"role": "assistant", ..}], ..}
//   {"chosen": [{"role": "user", ..}, {"role": "assistant", ..}], "rejected": [the same but the
//   last]}
//   {"chosen": "2+2= 4", "rejected": "2+2= 5"}            the prompt is what both begin with
//   {"instruction": "Add.", "input": "2 2", "chosen": "4", "rejected": "5"}      messages
#pragma once

#include <functional>

#include "tessera/text/chat/chat_prompt.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/preference/preference_recipe.h"

namespace tessera::train {

/// A prompt and two answers, as read.
struct PreferencePair {
  text::MarkedText prompt, chosen, rejected;
  bool rendered = false;  // messages, rendered by a template
};

/// Supplies the chat template; called only if there are messages.
using PromptsOfPairs = std::function<const text::ChatPrompt&()>;

/// The pair of an example. Throws Error(file) with what it found; `where` begins the message.
PreferencePair read_pair(const Json& example,
                         const PreferenceRecipe& how,
                         const std::string& where,
                         const PromptsOfPairs& prompts);

struct PairTokens {
  std::vector<int64_t> prompt, chosen, rejected;
};

/// Prompt and answers are tokenized separately, so that no token crosses the boundary. Answers that
/// are no messages are followed by `end`, if there is one.
PairTokens tokens_of(const PreferencePair& pair,
                     const text::Tokenizer& tokenizer,
                     std::optional<int32_t> end,
                     const PromptsOfPairs& prompts);

class PreferenceSource : public Dataset {
 public:
  /// All pairs are numbered, training pairs first, then validation pairs. PackedBatch::items has
  /// the number of each row.
  virtual int64_t pairs() const = 0;
  /// Those pairs, one per row.
  virtual PackedBatch numbered_pairs(const std::vector<int64_t>& numbers) const = 0;
  /// The pair of a training sample.
  virtual int64_t pair_of(int64_t sample) const = 0;
};

/// The pairs of a recipe's files. Every line is read and tokenized before the first step; errors
/// name file and line. A pair with more than `train.length` inputs loses the beginning of its
/// prompt. Pairs whose answers leave no room for a prompt token, and pairs with equal answers, are
/// skipped, and notes() has their number.
std::unique_ptr<PreferenceSource> open_pairs(const DataPlan& plan,
                                             const PreferenceRecipe& how,
                                             const text::Tokenizer& tokenizer,
                                             const CancelToken* cancel);

}  // namespace tessera::train
