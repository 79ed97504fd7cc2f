#include "tessera/text/grammar/json_numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

constexpr int64_t kNumberDigits = 15;  // that a double represents exactly
constexpr double kNumberBound = 1e15;

class NumberWriter {
 public:
  explicit NumberWriter(Grammar& grammar) : g_(grammar) {}

  int32_t any(bool whole, int64_t multiple_of) {
    const int32_t integer =
        multiple_of > 1 ? multiples(multiple_of)
                        : g_.choice({g_.literal("0"),
                                     g_.sequence({digit('1', '9'), digits(0, kNumberDigits - 1)})});
    const int32_t sign = g_.optional(g_.literal("-"));
    if (whole) return g_.sequence({sign, integer});
    const int32_t fraction = g_.optional(g_.sequence({g_.literal("."), digits(1, kNumberDigits)}));
    const int32_t exponent =
        g_.optional(g_.sequence({g_.chars({{'E', 'E'}, {'e', 'e'}}),
                                 g_.optional(g_.chars({{'+', '+'}, {'-', '-'}})), digits(1, 2)}));
    return g_.sequence({sign, integer, fraction, exponent});
  }

  int32_t bounded(const NumberRange& r) {
    std::vector<int32_t> parts;
    const double least = r.least.value_or(-INFINITY), most = r.most.value_or(INFINITY);
    if (r.whole) {
      // integers between the bounds
      double lo = std::ceil(least), hi = std::floor(most);
      if (r.above && lo == least) ++lo;
      if (r.below && hi == most) --hi;
      if (lo > hi) return g_.never();
      if (lo < 0) parts.push_back(minus(integers(std::max(0.0, -hi), -lo)));
      if (hi >= 0) parts.push_back(integers(std::max(0.0, lo), hi));
      return g_.choice(std::move(parts));
    }
    if (least > most || (least == most && (r.above || r.below))) return g_.never();
    if (least < 0 || (least == 0 && !r.above))
      parts.push_back(minus(decimals({std::max(0.0, -most), most <= 0 && r.below},
                                     {std::max(0.0, -least), least < 0 && r.above})));
    if (most > 0 || (most == 0 && !r.below))
      parts.push_back(decimals({std::max(0.0, least), least >= 0 && r.above}, {most, r.below}));
    return g_.choice(std::move(parts));
  }

 private:
  struct Bound {
    double value = 0;
    bool out = false;  // outside of the range
  };
  /// A decimal number as digits; the fraction without trailing zeros.
  struct Decimal {
    std::string whole, fraction;
  };

  int32_t digit(char first, char last) {
    if (last < first) return g_.never();
    return g_.chars({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
  }
  int32_t digits(int64_t least, int64_t most) {
    return g_.repeat(digit('0', '9'), least, std::max(least, most));
  }
  int32_t minus(int32_t part) { return g_.sequence({g_.literal("-"), part}); }

  /// Multiples in base 10: a rule per remainder.
  int32_t multiples(int64_t of) {
    std::vector<int32_t> states;
    for (int64_t r = 0; r < of; ++r) states.push_back(g_.fresh_rule("multiple"));
    const auto next = [&](int64_t remainder, int64_t from) {
      std::vector<int32_t> parts;
      for (int64_t d = from; d <= 9; ++d)
        parts.push_back(
            g_.sequence({g_.literal(std::string(1, static_cast<char>('0' + d))),
                         g_.call(states[static_cast<size_t>((10 * remainder + d) % of)])}));
      return parts;
    };
    for (int64_t r = 0; r < of; ++r) {
      auto parts = next(r, 0);
      if (r == 0) parts.push_back(g_.empty());
      g_.define(states[static_cast<size_t>(r)], g_.choice(std::move(parts)));
    }
    auto first = next(0, 1);
    first.push_back(g_.literal("0"));
    return g_.choice(std::move(first));
  }

  /// Numbers of equal length from one to the other.
  int32_t between(const std::string& low, const std::string& high, size_t at = 0) {
    if (at == low.size()) return g_.empty();
    const char a = low[at], b = high[at];
    if (a == b) return g_.sequence({g_.literal(std::string(1, a)), between(low, high, at + 1)});
    const auto rest = static_cast<int64_t>(low.size() - at - 1);
    const std::string nines(low.size(), '9'), zeros(low.size(), '0');
    std::vector<int32_t> parts;
    // any continuation where no bound remains
    const bool all_low = low.find_first_not_of('0', at + 1) == std::string::npos,
               all_high = high.find_first_not_of('9', at + 1) == std::string::npos;
    if (!all_low)
      parts.push_back(g_.sequence({g_.literal(std::string(1, a)), between(low, nines, at + 1)}));
    const char from = static_cast<char>(all_low ? a : a + 1),
               to = static_cast<char>(all_high ? b : b - 1);
    if (from <= to) parts.push_back(g_.sequence({digit(from, to), digits(rest, rest)}));
    if (!all_high)
      parts.push_back(g_.sequence({g_.literal(std::string(1, b)), between(zeros, high, at + 1)}));
    return g_.choice(std::move(parts));
  }

  /// Integers from `lo`, at least 0, to `hi`, which may be unlimited.
  int32_t integers(double lo, double hi) {
    if (lo >= kNumberBound) return g_.never();
    const auto text = [](double value) { return fmt::format("{:.0f}", value); };
    const double most = std::min(hi, kNumberBound - 1);
    std::vector<int32_t> parts;
    const std::string first = text(lo), last = text(most);
    for (size_t n = first.size(); n <= last.size(); ++n)
      parts.push_back(between(n == first.size() ? first : "1" + std::string(n - 1, '0'),
                              n == last.size() ? last : std::string(n, '9')));
    return g_.choice(std::move(parts));
  }

  static Decimal decimal(double value) {
    char text[400];
    const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr;
    const std::string all(text, end);
    const size_t point = std::min(all.find('.'), all.size());
    std::string fraction = point < all.size() ? all.substr(point + 1) : "";
    while (fraction.ends_with('0')) fraction.pop_back();
    return {all.substr(0, point), fraction};
  }

  /// Digits after the decimal point, as many as stay significant.
  int64_t room(const std::string& whole) const {
    return std::max<int64_t>(1, kNumberDigits - static_cast<int64_t>(whole.size()));
  }
  int32_t point(int32_t part) { return g_.sequence({g_.literal("."), part}); }

  /// A fraction of any value, or none.
  int32_t any_fraction(int64_t most) { return g_.optional(point(digits(1, most))); }
  int32_t not_zero(int64_t most) {
    return g_.sequence({g_.repeat(g_.literal("0"), 0, std::max<int64_t>(0, most - 1)),
                        digit('1', '9'), digits(0, std::max<int64_t>(0, most - 1))});
  }
  /// One of at least `f`.
  int32_t fraction_from(const std::string& f, bool out, int64_t most) {
    if (f.empty()) return out ? point(not_zero(most)) : any_fraction(most);
    return point(digits_from(f, 0, out, most));
  }
  int32_t digits_from(const std::string& f, size_t at, bool out, int64_t most) {
    const int64_t rest = std::max<int64_t>(0, most - static_cast<int64_t>(at) - 1);
    const char c = f[at];
    std::vector<int32_t> parts;
    if (c < '9')
      parts.push_back(g_.sequence({digit(static_cast<char>(c + 1), '9'), digits(0, rest)}));
    int32_t same = 0;
    if (at + 1 < f.size())
      same = digits_from(f, at + 1, out, most);
    else
      same = out ? (rest > 0 ? not_zero(rest) : g_.never()) : digits(0, rest);
    parts.push_back(g_.sequence({g_.literal(std::string(1, c)), same}));
    return g_.choice(std::move(parts));
  }
  /// One of at most `f`, or none.
  int32_t fraction_to(const std::string& f, bool out, int64_t most) {
    if (f.empty()) return out ? g_.never() : g_.optional(point(g_.repeat(g_.literal("0"), 1, 3)));
    return g_.optional(point(digits_to(f, 0, out, most)));
  }
  int32_t digits_to(const std::string& f, size_t at, bool out, int64_t most) {
    const int64_t rest = std::max<int64_t>(0, most - static_cast<int64_t>(at) - 1);
    const char c = f[at];
    std::vector<int32_t> parts;
    if (c > '0')
      parts.push_back(g_.sequence({digit('0', static_cast<char>(c - 1)), digits(0, rest)}));
    int32_t same = 0;
    if (at + 1 < f.size())  // a number that ends here is less, because f continues with other
                            // digits than zeros
      same = g_.optional(digits_to(f, at + 1, out, most));
    else
      same = out ? g_.never() : g_.repeat(g_.literal("0"), 0, std::min<int64_t>(rest, 3));
    parts.push_back(g_.sequence({g_.literal(std::string(1, c)), same}));
    return g_.choice(std::move(parts));
  }

  /// Numbers from 0 on, with a fraction or without.
  int32_t decimals(const Bound& lo, const Bound& hi) {
    if (lo.value >= kNumberBound) return g_.never();
    const Decimal a = decimal(lo.value);
    const bool open = !(hi.value < kNumberBound);
    const Decimal b = open ? Decimal{} : decimal(hi.value);
    if (!open && a.whole == b.whole) return near(a, lo.out, b, hi.out);
    std::vector<int32_t> parts;
    parts.push_back(
        g_.sequence({g_.literal(a.whole), fraction_from(a.fraction, lo.out, room(a.whole))}));
    const double from = std::floor(lo.value) + 1,
                 to = open ? kNumberBound - 1 : std::floor(hi.value) - 1;
    if (from <= to) {
      // the longer a number, the fewer digits after the point: use those of the longest
      const auto longest = fmt::format("{:.0f}", to);
      parts.push_back(
          g_.sequence({integers(from, to), any_fraction(std::min<int64_t>(6, room(longest)))}));
    }
    if (!open)
      parts.push_back(
          g_.sequence({g_.literal(b.whole), fraction_to(b.fraction, hi.out, room(b.whole))}));
    return g_.choice(std::move(parts));
  }

  /// Between two numbers with equal integer parts: fractions of equal length, as integers.
  int32_t near(const Decimal& a, bool a_out, const Decimal& b, bool b_out) {
    std::vector<int32_t> parts;
    if (a.fraction.empty() && !a_out) parts.push_back(g_.literal(a.whole));
    const size_t length = std::max(a.fraction.size(), b.fraction.size());
    for (const size_t n : {length, length + 1, length + 2}) {
      if (n == 0) continue;
      std::string low = a.fraction + std::string(n - a.fraction.size(), '0'),
                  high = b.fraction + std::string(n - b.fraction.size(), '0');
      if (a_out && !moved(low, true)) continue;
      if (b_out && !moved(high, false)) continue;
      if (low > high) continue;
      parts.push_back(g_.sequence({g_.literal(a.whole), point(between(low, high))}));
    }
    return g_.choice(std::move(parts));
  }

  /// Changes the last digit by one; false on overflow.
  static bool moved(std::string& number, bool up) {
    for (size_t i = number.size(); i-- > 0;) {
      if (number[i] != (up ? '9' : '0')) {
        number[i] = static_cast<char>(number[i] + (up ? 1 : -1));
        return true;
      }
      number[i] = up ? '0' : '9';
    }
    return false;
  }

  Grammar& g_;
};

}  // namespace

int32_t add_number(Grammar& grammar, const NumberRange& range) {
  NumberWriter writer(grammar);
  if (!range.least && !range.most) return writer.any(range.whole, range.multiple_of);
  return writer.bounded(range);
}

}  // namespace tessera::text
