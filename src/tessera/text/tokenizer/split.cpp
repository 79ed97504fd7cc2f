#include "tessera/text/tokenizer/split.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

std::vector<Span> spans_of_literal(std::string_view text, std::string_view literal) {
  if (literal.empty()) return {{0, text.size(), false}};
  std::vector<Span> out;
  size_t covered = 0;
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, covered)) {
    if (at != covered) out.push_back({covered, at, false});
    covered = at + literal.size();
    out.push_back({at, covered, true});
  }
  if (covered != text.size()) out.push_back({covered, text.size(), false});
  return out;
}

std::vector<Span> spans_of_characters(std::string_view text, Pattern::Predicate predicate) {
  std::vector<Span> out;
  size_t covered = 0;
  for_each_character(text, [&](char32_t c, size_t begin, size_t end) {
    if (!predicate(c)) return;
    if (covered != begin) out.push_back({covered, begin, false});
    out.push_back({begin, end, true});
    covered = end;
  });
  if (covered != text.size()) out.push_back({covered, text.size(), false});
  return out;
}

// Joins each run of matches and each run of gaps.
std::vector<Span> join_runs(const std::vector<Span>& spans) {
  std::vector<Span> out;
  for (const Span& span : spans) {
    if (!out.empty() && out.back().is_match == span.is_match) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
  }
  return out;
}

// Joins a match to the span before it, if that one is a gap; of a run of matches, only the first.
std::vector<Span> merge_with_previous(const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool after_match = false;
  for (const Span& span : spans) {
    if (span.is_match && !after_match && !out.empty()) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
    after_match = span.is_match;
  }
  return out;
}

std::vector<Span> merge_with_next(const std::vector<Span>& spans) {
  std::vector<Span> out;
  bool before_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->is_match && !before_match && !out.empty()) {
      out.back().begin = span->begin;
    } else {
      out.push_back(*span);
    }
    before_match = span->is_match;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
    {"Isolated", SplitBehavior::isolated},
    {"Removed", SplitBehavior::removed},
    {"MergedWithPrevious", SplitBehavior::merged_with_previous},
    {"MergedWithNext", SplitBehavior::merged_with_next},
    {"Contiguous", SplitBehavior::contiguous},
}};

}  // namespace

SplitBehavior split_behavior_named(std::string_view name, std::string_view where) {
  for (const auto& [known, behavior] : kBehaviors)
    if (name == known) return behavior;
  fail(ErrorKind::file, where,
       "behavior = \"{}\"; expected Isolated, Removed, MergedWithPrevious, MergedWithNext or "
       "Contiguous",
       name);
}

Pattern Pattern::from_json(const spec::Json& value, const std::string& where) {
  if (value.is_object() && value.size() == 1 && value.begin().value().is_string()) {
    const auto& text = value.begin().value().get_ref<const std::string&>();
    // an empty literal matches between all characters, as an empty expression does
    if (value.begin().key() == "String" && !text.empty()) return Pattern(text);
    if (value.begin().key() == "String" || value.begin().key() == "Regex")
      return Pattern(Regex(text, where));
  }
  fail(ErrorKind::file, where, "pattern is {}; expected {{\"String\": ...}} or {{\"Regex\": ...}}",
       spec::kind_of(value));
}

std::vector<Span> Pattern::spans(std::string_view text) const {
  if (const auto* regex = std::get_if<Regex>(&kind_)) return regex->spans(text);
  if (const auto* literal = std::get_if<std::string>(&kind_))
    return spans_of_literal(text, *literal);
  return spans_of_characters(text, std::get<Predicate>(kind_));
}

std::vector<std::string_view> split(std::string_view text,
                                    const Pattern& pattern,
                                    SplitBehavior behavior,
                                    bool invert) {
  std::vector<Span> spans = pattern.spans(text);
  if (invert)
    for (Span& span : spans) span.is_match = !span.is_match;
  switch (behavior) {
    case SplitBehavior::isolated:
      break;
    case SplitBehavior::removed:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      break;
    case SplitBehavior::contiguous:
      spans = join_runs(spans);
      break;
    case SplitBehavior::merged_with_previous:
      spans = merge_with_previous(spans);
      break;
    case SplitBehavior::merged_with_next:
      spans = merge_with_next(spans);
      break;
  }
  std::vector<std::string_view> out;
  out.reserve(spans.size());
  for (const Span& span : spans)
    if (span.begin < span.end) out.push_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

}  // namespace tessera::text
