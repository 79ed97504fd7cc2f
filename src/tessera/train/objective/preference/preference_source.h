// Pairs of answers to one prompt, out of JSON lines. Torch-free. A sample is a pair: two documents
// of one row, the chosen answer behind its prompt and the rejected one, whose targets are the
// answers' tokens, with what ends them.
//
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

/// A prompt and two answers, as they are read.
struct PreferencePair {
  text::MarkedText prompt, chosen, rejected;
  bool rendered = false;  // messages, as a template writes them
};

/// How messages are written; asked for where there are some.
using PromptsOfPairs = std::function<const text::ChatPrompt&()>;

/// The pair of an example. Throws Error(file) with what it found; `where` begins the message.
PreferencePair read_pair(const Json& example,
                         const PreferenceRecipe& how,
                         const std::string& where,
                         const PromptsOfPairs& prompts);

struct PairTokens {
  std::vector<int64_t> prompt, chosen, rejected;
};

/// Prompt and answers tokenised apart, as a merge across their border would move it; behind answers
/// that are no messages stands `end`, where there is one.
PairTokens tokens_of(const PreferencePair& pair,
                     const text::Tokenizer& tokenizer,
                     std::optional<int32_t> end,
                     const PromptsOfPairs& prompts);

class PreferenceSource : public Dataset {
 public:
  /// All pairs have a number: those to learn from, then those held out. PackedBatch::items holds
  /// it, once for each row.
  virtual int64_t pairs() const = 0;
  /// Those pairs, one a row.
  virtual PackedBatch numbered_pairs(const std::vector<int64_t>& numbers) const = 0;
  /// The pair of a training sample.
  virtual int64_t pair_of(int64_t sample) const = 0;
};

/// The pairs of a recipe's files. Every line is read and tokenised before the first step: what is
/// wrong with one is said with its file and number. What has more than `train.length` inputs loses
/// the beginning of its prompt; pairs whose answers leave no room for a token of it, and those
/// whose answers are equal, are left out, and notes() says how many.
std::unique_ptr<PreferenceSource> open_pairs(const Recipe& recipe,
                                             const PreferenceRecipe& how,
                                             const text::Tokenizer& tokenizer,
                                             const CancelToken* cancel);

}  // namespace tessera::train
