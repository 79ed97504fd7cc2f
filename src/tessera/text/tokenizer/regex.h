// Regular expressions of tokenizer files, run by PCRE2 (UTF, Unicode properties, JIT).
//
// tokenizer.json patterns are written for Oniguruma, and the two engines agree on all but a few
// constructs. The pattern is translated where the meaning would differ (\s, \w, \b, \uHHHH, ^ and $
// are line anchors) and refused where it cannot be (class intersection, nested classes, \h,
// callouts).
//
// A pattern is untrusted: its length, nesting, matching steps and memory are limited. Errors:
// Error(file) when it cannot be compiled, Error(input) when a text exceeds the matching limits.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// A stretch [begin, end) of a text, and whether it is a match or lies between matches.
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

/// The pattern as PCRE2 must see it; throws Error(file) on constructs that it would read
/// differently.
std::string translate_pattern(std::string_view pattern, std::string_view where);

}  // namespace tessera::text
