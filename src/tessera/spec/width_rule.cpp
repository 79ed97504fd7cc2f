#include "tessera/spec/width_rule.h"

#include <charconv>
#include <cmath>

namespace tessera::spec {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

/// Whether the whole text is one number above 0 and at most kLargest.
template <class T>
bool reads(std::string_view text, T& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end && out > 0 && out <= static_cast<T>(kLargest);
}

}  // namespace

int64_t width_by_rule(std::string_view rule, int64_t d, const Scope& scope) {
  const auto wrong = [&] {
    fail(ErrorKind::spec, scope.path,
         "\"{}\" is no width; expected an integer, or a rule such as \"8/3\", \"8/3, multiple of "
         "256\" or \"1.3 * 8/3, multiple of 4096\"",
         rule);
  };
  std::string_view factors = rule;
  int64_t multiple = 1;
  if (const size_t comma = rule.find(','); comma != std::string_view::npos) {
    constexpr std::string_view kMultiple = "multiple of ";
    const std::string_view rest = trimmed(rule.substr(comma + 1));
    if (!rest.starts_with(kMultiple) || !reads(trimmed(rest.substr(kMultiple.size())), multiple))
      wrong();
    factors = rule.substr(0, comma);
  }
  int64_t width = d;
  for (bool more = true; more;) {
    const size_t star = factors.rfind('*');
    more = star != std::string_view::npos;
    const std::string_view factor = trimmed(more ? factors.substr(star + 1) : factors);
    if (more) factors = factors.substr(0, star);
    const size_t slash = factor.find('/');
    int64_t above = 0, below = 0;
    double number = 0;
    double next = 0;
    if (slash != std::string_view::npos && reads(trimmed(factor.substr(0, slash)), above) &&
        reads(trimmed(factor.substr(slash + 1)), below)) {
      next = static_cast<double>(width * above / below);  // below 2^60
    } else if (slash == std::string_view::npos && reads(factor, number)) {
      next = std::floor(number * static_cast<double>(width));
    } else {
      wrong();
    }
    if (next < 1 || next > static_cast<double>(kLargest))
      fail(ErrorKind::spec, scope.path, "\"{}\" of d_model = {} is {}; expected 1 to {}", rule, d,
           next, kLargest);
    width = static_cast<int64_t>(next);
  }
  return (width + multiple - 1) / multiple * multiple;
}

}  // namespace tessera::spec
