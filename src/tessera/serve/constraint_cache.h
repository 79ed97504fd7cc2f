// Constrained decoding in requests (response_format, json_schema, structured_outputs, grammar).
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

/// The grammar of a request. Throws ApiError(400) with the field for unknown formats,
/// for grammars and schemas that are invalid or unsupported, and for those that are too large.
/// `ignored`: receives the paths of schema keywords that are not enforced, if the request allows
/// that.
text::Grammar language_of(const GenerationBody& body, std::vector<std::string>& ignored);

/// Cache of the compiled constraints of one model: its token trie, created with the first one, and
/// the last few constraints with what they have computed of the vocabulary. Owns them together with
/// the requests that use them. Thread-safe. Throws as language_of() does.
class ConstraintCache {
 public:
  /// Reasoning before an answer, which is not constrained.
  struct Thoughts {
    text::ReasoningTags tags;
    bool open = false;  // the prompt ends inside the reasoning
  };
  /// Null if the request has no constraint.
  std::shared_ptr<const text::Constraint> of(const GenerationBody& body,
                                             const text::Tokenizer& tokenizer,
                                             const std::optional<Thoughts>& reasoning,
                                             std::vector<std::string>* ignored = nullptr);
  /// Constraint of answers that call functions with these options.
  std::shared_ptr<const text::Constraint> of_calls(const text::CallGrammarOptions& options,
                                                   const text::Tokenizer& tokenizer);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const text::Constraint> constraint = nullptr;
    std::vector<std::string> ignored = {};
  };
  using Make = std::function<text::Grammar(std::vector<std::string>& ignored)>;
  std::shared_ptr<const text::Constraint> cached(const std::string& key,
                                                 const std::string& field,
                                                 const text::Tokenizer& tokenizer,
                                                 const Make& make,
                                                 std::vector<std::string>* ignored);

  std::mutex mutex_;
  std::shared_ptr<const text::TokenTrie> tokens_;
  std::deque<Entry> entries_;  // newest first
};

}  // namespace tessera::serve
