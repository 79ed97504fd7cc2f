// Constrained decoding with a grammar: the allowed next tokens at every position of a text.
//
//   const auto vocabulary = std::make_shared<const TokenTrie>(tokenizer);  // once
//   request.decoding.constraint = std::make_shared<GrammarConstraint>(
//       parse_gbnf(text, "root.gbnf"), vocabulary, "root.gbnf");
//
// A token is allowed if all of its bytes are, across borders of the grammar's parts. The allowed
// tokens of a position are found by one walk through the trie and cached for all texts of this
// constraint, up to a memory limit. Special tokens are allowed only where the grammar names them.
#pragma once

#include <memory>
#include <string>

#include "tessera/text/grammar/byte_program.h"
#include "tessera/text/grammar/constraint.h"
#include "tessera/text/grammar/token_trie.h"

namespace tessera::text {

class GrammarConstraint final : public Constraint {
 public:
  struct Options {
    size_t most_bytes = size_t{64} << 20;  // limit of the cache
  };
  /// Throws Error(input), naming `where`, for an unsupported grammar, or one with tokens that the
  /// vocabulary does not have.
  GrammarConstraint(const Grammar& grammar,
                    std::shared_ptr<const TokenTrie> vocabulary,
                    const std::string& where);
  GrammarConstraint(const Grammar& grammar,
                    std::shared_ptr<const TokenTrie> vocabulary,
                    const std::string& where,
                    const Options& options);
  ~GrammarConstraint() override;

  std::unique_ptr<ConstraintState> start() const override;
  /// True if the text is in the language. For checks of existing texts.
  bool holds(std::string_view text) const;

  /// For benchmarks and tests: cached positions and their memory; masks that needed a scan of the
  /// whole vocabulary.
  struct Counts {
    size_t states = 0, masks = 0, bytes = 0, restarts = 0, walks = 0;
  };
  Counts counts() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera::text
