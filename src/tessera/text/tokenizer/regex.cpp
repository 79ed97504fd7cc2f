#include "tessera/text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <pcre2.h>
#include <span>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxPatternBytes = 32 << 10;
constexpr size_t kMinMatchSteps = 10'000'000;
constexpr size_t kMatchStepsPerByte = 64;  // a run of n spaces legitimately costs a few n steps
constexpr uint32_t kMaxHeapKiB = 256 << 10;
constexpr size_t kJitStackBytes = 8 << 20;

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free_function(pointer);
  }
};
using MatchDataPointer = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContextPointer = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using CompileContextPointer =
    std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using JitStackPointer = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

/// Patterns that group the digits of a number from its right end. For each match they look as far
/// as the number goes, so that a search for them takes quadratic time in the number's length; they
/// are run by hand.
struct DigitPattern {
  std::string_view pattern;
  bool (*is_digit)(char32_t);
  bool empty_matches;  // between groups, not the groups
};
constexpr DigitPattern kDigitPatterns[] = {
    {R"(\d{1,3}(?=(?:\d{3})*\b))", is_decimal, false},
    {R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", is_numeric, false},
    {R"((?=(\d{3})+(?!\d)))", is_decimal, true},
};

const DigitPattern* digit_pattern(std::string_view pattern) {
  for (const DigitPattern& known : kDigitPatterns)
    if (known.pattern == pattern) return &known;
  return nullptr;
}

// Working memory of matching; one per thread, because patterns are shared.
struct Scratch {
  MatchDataPointer data{pcre2_match_data_create(1, nullptr)};
  MatchContextPointer context{pcre2_match_context_create(nullptr)};
  JitStackPointer stack{pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)};

  Scratch() {
    if (!data || !context) fail(ErrorKind::resource, "regex", "no memory for matching");
    pcre2_set_heap_limit(context.get(), kMaxHeapKiB);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

// Oniguruma's \w, which has more word characters than PCRE2's; for use inside brackets.
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{N}\\p{Pc}";

// Rewrites the constructs of a pattern that the two engines interpret differently.
class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\') {
        escape(false);
      } else if (in_[at_] == '[') {
        character_class();
      } else if (in_.substr(at_, 2) == "(*") {
        refuse("(*", "no verbs");
      } else if (in_.substr(at_, 3) == "(?C" || in_.substr(at_, 3) == "(?R" ||
                 in_.substr(at_, 3) == "(?&") {
        refuse(in_.substr(at_, 3), "no callouts or recursion");
      } else if (in_.substr(at_, 2) == "(?") {
        group_options();
      } else {
        out_ += in_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view found, std::string_view expected) const {
    fail(ErrorKind::file, where_, "pattern \"{}\": \"{}\" at byte {}; {}", in_.substr(0, 200),
         found, at_, expected);
  }

  // (?m) means "dot matches newline" in Oniguruma and "line anchors" in PCRE2
  void group_options() {
    size_t end = at_ + 2;
    while (end < in_.size() && (in_[end] == '-' || (in_[end] >= 'a' && in_[end] <= 'z'))) ++end;
    const std::string_view options = in_.substr(at_ + 2, end - at_ - 2);
    for (const char option : options)
      if (option != 'i' && option != '-' && option != 'x')
        refuse(in_.substr(at_, end - at_), "of the inline options only i and x are supported");
    out_ += in_.substr(at_, end - at_);
    at_ = end;
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) refuse("\\", "expected a character after it");
    const char kind = in_[at_ + 1];
    switch (kind) {
      // PCRE2's \s also holds U+180E, which is not White_Space
      case 's':
        out_ += "\\p{White_Space}";
        break;
      case 'S':
        out_ += "\\P{White_Space}";
        break;
      case 'd':
        out_ += "\\p{Nd}";
        break;
      case 'D':
        out_ += "\\P{Nd}";
        break;
      case 'w':
        out_ += in_class ? kWord : fmt::format("[{}]", kWord);
        break;
      case 'W':
        if (in_class) refuse("\\W", "it is not supported inside a character class");
        out_ += fmt::format("[^{}]", kWord);
        break;
      case 'b':  // a backspace inside a class, else the border of a word
        out_ +=
            in_class ? "\\x08" : fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord);
        break;
      case 'u':
        code_point_escape();
        return;
      case 'h':
      case 'H':
      case 'O':
      case 'N':
      case 'K':
      case 'y':
      case 'Y':
      case 'C':
      case 'B':
      case 'g':
      case 'k':
      case 'Q':
      case 'E':
      case 'X':
      case 'R':
      case 'v':
      case 'V':
        refuse(in_.substr(at_, 2), "it is not supported");
      default: {
        size_t length = character_length(in_, at_ + 1);
        if (length == 0) length = 1;
        out_ += in_.substr(at_, 1 + length);
        at_ += 1 + length;
        return;
      }
    }
    at_ += 2;
  }

  void code_point_escape() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    const auto is_hex = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    };
    if (digits.size() != 4 || !std::all_of(digits.begin(), digits.end(), is_hex))
      refuse("\\u", "expected four hexadecimal digits after it");
    out_ += "\\x{";
    out_ += digits;
    out_ += '}';
    at_ += 6;
  }

  void character_class() {
    out_ += in_[at_++];
    if (at_ < in_.size() && in_[at_] == '^') out_ += in_[at_++];
    for (bool first = true; at_ < in_.size(); first = false) {
      if (in_[at_] == ']' && !first) {
        out_ += in_[at_++];
        return;
      }
      if (in_[at_] == '\\') {
        escape(true);
      } else if (in_.substr(at_, 2) == "[:") {
        const size_t end = in_.find(":]", at_ + 2);
        if (end == std::string_view::npos) refuse("[:", "expected \":]\"");
        out_ += in_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (in_[at_] == '[') {
        refuse("[", "nested character classes are not supported; write \\[ for a bracket");
      } else if (in_.substr(at_, 2) == "&&") {
        refuse("&&", "class intersection is not supported");
      } else {
        out_ += in_[at_++];
      }
    }
    refuse("[", "the character class does not end");
  }

  std::string_view in_;
  std::string_view where_;
  std::string out_;
  size_t at_ = 0;
};

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

struct Regex::Compiled {
  std::shared_ptr<pcre2_code> code;
  std::string pattern;
  const DigitPattern* digits = nullptr;

  /// Appends the matches within a number, given by the begins of its digits and its end.
  void group(std::string_view text,
             std::span<const size_t> digits_begin,
             size_t end,
             std::vector<Span>& out) const;
  bool matches_at(std::string_view text, size_t at) const;
};

bool Regex::Compiled::matches_at(std::string_view text, size_t at) const {
  thread_local Scratch scratch;
  return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                     PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, scratch.data.get(),
                     scratch.context.get()) >= 0;
}

void Regex::Compiled::group(std::string_view text,
                            std::span<const size_t> begins,
                            size_t end,
                            std::vector<Span>& out) const {
  constexpr size_t kGroup = 3;
  const size_t n = begins.size();
  // the last digit decides whether the pattern matches numbers that end like this one
  if (n == 0 || (!digits->empty_matches && !matches_at(text, begins[n - 1]))) return;
  for (size_t at = 0; at < n;) {
    const size_t size = (n - at - 1) % kGroup + 1;
    const size_t next = at + size;
    if (!digits->empty_matches)
      out.push_back({begins[at], next < n ? begins[next] : end, true});
    else if (size == kGroup)
      out.push_back({begins[at], begins[at], true});
    at = next;
  }
}

Regex::Regex(std::string_view pattern, std::string_view where) : where_(where) {
  if (pattern.size() > kMaxPatternBytes)
    fail(ErrorKind::file, where, "pattern of {} bytes; at most {} are accepted", pattern.size(),
         kMaxPatternBytes);
  const std::string translated = translate_pattern(pattern, where);
  const CompileContextPointer context(pcre2_compile_context_create(nullptr));
  if (!context) fail(ErrorKind::resource, "regex", "no memory to compile a pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  size_t offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->pattern = pattern.substr(0, 200);
  compiled->digits = digit_pattern(pattern);
  compiled->code = {
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                    &offset, context.get()),
      pcre2_code_free};
  if (!compiled->code)
    fail(ErrorKind::file, where, "pattern \"{}\": {}", compiled->pattern, message_of(code));
  pcre2_jit_compile(compiled->code.get(),
                    PCRE2_JIT_COMPLETE);  // if it fails, the interpreter is used
  compiled_ = std::move(compiled);
}

std::vector<Span> Regex::spans(std::string_view text) const {
  std::vector<Span> out;
  if (text.empty()) return out;
  if (compiled_->digits != nullptr) return spans_of_digits(text);
  thread_local Scratch scratch;
  const size_t steps = std::max(kMinMatchSteps, kMatchStepsPerByte * text.size());
  const auto limit = static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX));
  pcre2_set_match_limit(scratch.context.get(), limit);
  pcre2_set_depth_limit(scratch.context.get(), limit);

  const auto match = [&](size_t from, uint32_t options) {
    return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), from, PCRE2_NO_UTF_CHECK | options, scratch.data.get(),
                       scratch.context.get());
  };
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t covered = 0;         // end of the last span
  size_t last_match = kNone;  // end of the last match
  for (size_t from = 0; from <= text.size();) {
    int result = match(from, 0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(from, PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      fail(ErrorKind::input, where_, "pattern \"{}\" fails on a text of {} bytes: {}",
           compiled_->pattern, text.size(), message_of(result));
    const size_t* offsets = pcre2_get_ovector_pointer(scratch.data.get());
    const size_t begin = offsets[0];
    const size_t end = offsets[1];
    if (begin > end || begin < covered)
      fail(ErrorKind::input, where_, "pattern \"{}\" matches backwards", compiled_->pattern);
    // an empty match moves the scan by one character
    const size_t step = end < text.size() ? std::max<size_t>(1, character_length(text, end)) : 1;
    from = begin == end ? end + step : end;
    if (begin == end && last_match == end) continue;
    last_match = end;
    if (covered != begin) out.push_back({covered, begin, false});
    out.push_back({begin, end, true});
    covered = end;
  }
  if (covered != text.size()) out.push_back({covered, text.size(), false});
  return out;
}

std::vector<Span> Regex::spans_of_digits(std::string_view text) const {
  std::vector<Span> matches, out;
  std::vector<size_t> begins;
  for_each_character(text, [&](char32_t c, size_t begin, size_t) {
    if (compiled_->digits->is_digit(c)) {
      begins.push_back(begin);
      return;
    }
    compiled_->group(text, begins, begin, matches);
    begins.clear();
  });
  compiled_->group(text, begins, text.size(), matches);
  size_t covered = 0;
  for (const Span& match : matches) {
    if (covered != match.begin) out.push_back({covered, match.begin, false});
    out.push_back(match);
    covered = match.end;
  }
  if (covered != text.size()) out.push_back({covered, text.size(), false});
  return out;
}

}  // namespace tessera::text
