// Texts of a grammar as tokens of a vocabulary: for every place of a text, the tokens that it may
// go on with.
//
//   const auto vocabulary = std::make_shared<const TokenTrie>(tokenizer);  // once
//   request.writing.constraint =
//       std::make_shared<GrammarConstraint>(parse_gbnf(text, "root.gbnf"), vocabulary,
//       "root.gbnf");
//
// A token is allowed where all of its bytes are, wherever the grammar's own parts end. The tokens
// of a place are found by one walk through the trie and then remembered, for all texts of this
// constraint, as long as they take no more than some memory. Special tokens come only where the
// grammar names them.
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
    size_t most_bytes = size_t{64} << 20;  // of what is remembered
  };
  /// Throws Error(input), naming `where`, for a grammar that cannot be followed, or one with tokens
  /// that the vocabulary does not have.
  GrammarConstraint(const Grammar& grammar,
                    std::shared_ptr<const TokenTrie> vocabulary,
                    const std::string& where);
  GrammarConstraint(const Grammar& grammar,
                    std::shared_ptr<const TokenTrie> vocabulary,
                    const std::string& where,
                    const Options& options);
  ~GrammarConstraint() override;

  std::unique_ptr<ConstraintState> start() const override;
  /// Whether the text is one of the language. For checks of answers that were made elsewhere.
  bool holds(std::string_view text) const;

  /// For benchmarks and tests: places that are remembered, and what they take; masks that the whole
  /// vocabulary was looked at for.
  struct Counts {
    size_t states = 0, masks = 0, bytes = 0, restarts = 0, walks = 0;
  };
  Counts counts() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera::text
