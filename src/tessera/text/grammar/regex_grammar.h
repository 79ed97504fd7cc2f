// Regular expressions as parts of grammars: ECMA-262 without look-around, back-references, \b and
// \p.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

/// Representation of a character in the text.
enum class Spelling {
  plain,
  json,  // inside a JSON string, with a unique escape for each character
};

/// One character of the ranges, in this spelling.
int32_t spelled(Grammar& grammar, const CharacterRanges& ranges, Spelling spelling);
/// A text (UTF-8), in this spelling.
int32_t spelled(Grammar& grammar, std::string_view text, Spelling spelling);

struct RegexPart {
  int32_t node = 0;
  int64_t least = 0, most = 0;  // characters; Grammar::kAnyTimes = any
};

/// `whole`: the text matches from first to last character; otherwise it contains a match, unless
/// anchored by ^ and $. Throws Error(input) for a pattern that is invalid or outside the subset.
RegexPart add_regex(Grammar& grammar,
                    std::string_view pattern,
                    Spelling spelling,
                    bool whole,
                    const std::string& where);

/// The language of texts that match a pattern as a whole.
Grammar regex_grammar(std::string_view pattern, const std::string& where);
/// One of some texts.
Grammar choice_grammar(const std::vector<std::string>& texts);

}  // namespace tessera::text
