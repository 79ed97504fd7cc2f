// Regular expressions of tokenizer files, run by PCRE2 (UTF, Unicode properties, JIT).
//
// Patterns of tokenizer.json are written for Oniguruma; both engines agree except for a few
// constructs. A pattern is translated where its meaning would differ (\s, \w, \b, \uHHHH, ^ and $
// are line anchors) and rejected where it cannot be translated (class intersection, nested classes,
// \h, callouts).
//
// Patterns are untrusted: length, nesting, matching steps and memory are limited. Errors:
// Error(file) if a pattern cannot be compiled, Error(input) if a text exceeds the matching limits.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// A range [begin, end) of a text: a match, or a gap between matches.
struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool is_match = false;
};

class Regex {
 public:
  Regex(std::string_view pattern, std::string_view where);

  /// Covers `text` (well-formed UTF-8) by spans, matches and gaps in order. Empty matches follow
  /// Oniguruma's scan: allowed, except right after the previous match.
  std::vector<Span> spans(std::string_view text) const;

 private:
  std::vector<Span> spans_of_digits(std::string_view text) const;

  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::string where_;
};

/// Translates a pattern to PCRE2; throws Error(file) for constructs that it would interpret
/// differently.
std::string translate_pattern(std::string_view pattern, std::string_view where);

}  // namespace tessera::text
