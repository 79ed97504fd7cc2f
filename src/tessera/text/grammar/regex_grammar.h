// Regular expressions as parts of grammars: ECMA-262 without what no grammar can follow or few use
// (look-around, back-references, \b, \p).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

/// How a character stands in a text.
enum class Spelling {
  plain,
  json,  // within a JSON string: escaped where it must be, in one way each
};

/// One character of these, in this spelling.
int32_t spelled(Grammar& grammar, const CharacterRanges& ranges, Spelling spelling);
/// These characters (UTF-8) one after another.
int32_t spelled(Grammar& grammar, std::string_view text, Spelling spelling);

struct RegexPart {
  int32_t node = 0;
  int64_t least = 0, most = 0;  // characters; Grammar::kAnyTimes = any
};

/// `whole`: the text is a match from its first character to its last; else it holds one somewhere,
/// unless ^ and $ say where. Throws Error(input) for what is no pattern or not of the subset.
RegexPart add_regex(Grammar& grammar,
                    std::string_view pattern,
                    Spelling spelling,
                    bool whole,
                    const std::string& where);

/// The language of a pattern that texts match as a whole.
Grammar regex_grammar(std::string_view pattern, const std::string& where);
/// One of some texts.
Grammar choice_grammar(const std::vector<std::string>& texts);

}  // namespace tessera::text
