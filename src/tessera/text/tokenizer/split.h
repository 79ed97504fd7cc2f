// Splits text by a pattern, with a choice of what happens to the matches.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/regex.h"

namespace tessera::text {

/// A match becomes a piece, is dropped, is joined to a neighbour, or to adjacent matches.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// Throws Error(file) with the names of tokenizer.json ("Isolated", ...).
SplitBehavior split_behavior_named(std::string_view name, std::string_view where);

/// A literal string, a regular expression, or a property of single characters.
class Pattern {
 public:
  using Predicate = bool (*)(char32_t);
  explicit Pattern(std::string literal) : kind_(std::move(literal)) {}
  explicit Pattern(Regex regex) : kind_(std::move(regex)) {}
  explicit Pattern(Predicate predicate) : kind_(predicate) {}
  /// {"String": "..."} or {"Regex": "..."}.
  static Pattern from_json(const spec::Json& value, const std::string& where);

  /// Matches and gaps in order; they cover `text` (well-formed UTF-8).
  std::vector<Span> spans(std::string_view text) const;

 private:
  std::variant<std::string, Regex, Predicate> kind_;
};

/// The remaining pieces of `text` in order, without empty ones. `invert` swaps matches and gaps.
std::vector<std::string_view> split(std::string_view text,
                                    const Pattern& pattern,
                                    SplitBehavior behavior,
                                    bool invert = false);

}  // namespace tessera::text
