// What a request says of its text's form (response_format, json_schema, structured_outputs,
// grammar), as the engine holds texts to it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/serve/bodies.h"
#include "tessera/text/chat/reply.h"
#include "tessera/text/grammar/constraint.h"
#include "tessera/text/grammar/grammar.h"
#include "tessera/text/grammar/token_trie.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::serve {

/// The language that a request asks for. Throws ApiError(400) that names the field, for forms that
/// are not known, grammars and schemas that cannot be followed, and those that are too large.
/// `ignored`: takes the places of a schema that are not held to, where the request allows that.
text::Grammar language_of(const GenerationBody& body, std::vector<std::string>& ignored);

/// Constraints of a model: the tree of its tokens is made with the first one, and the last few
/// constraints stay, with what they have learned of the vocabulary, for requests that say the same.
/// For many threads.
class ConstraintCache {
 public:
  /// What a model may think before an answer, which no form holds.
  struct Thoughts {
    text::ReasoningTags tags;
    bool open = false;  // the prompt has opened them
  };
  /// Null where the request constrains nothing.
  std::shared_ptr<const text::Constraint> of(const GenerationBody& body,
                                             const text::Tokenizer& tokenizer,
                                             const std::optional<Thoughts>& reasoning,
                                             std::vector<std::string>* ignored = nullptr);
  /// Answers that call functions as they say.
  std::shared_ptr<const text::Constraint> of_calls(const text::CallGrammarOptions& options,
                                                   const text::Tokenizer& tokenizer);

 private:
  struct Kept {
    std::string said;
    std::shared_ptr<const text::Constraint> constraint = nullptr;
    std::vector<std::string> ignored = {};
  };
  using Make = std::function<text::Grammar(std::vector<std::string>& ignored)>;
  std::shared_ptr<const text::Constraint> kept(const std::string& said,
                                               const std::string& field,
                                               const text::Tokenizer& tokenizer,
                                               const Make& make,
                                               std::vector<std::string>* ignored);

  std::mutex mutex_;
  std::shared_ptr<const text::TokenTrie> tokens_;
  std::deque<Kept> kept_;  // the newest first
};

}  // namespace tessera::serve
