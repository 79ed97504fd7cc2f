// `format % values`, Python's printf-style formatting of texts.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "tessera/text/jinja/jinja_filters.h"
#include "tessera/text/utf8.h"

namespace tessera::text::jinja {
namespace {

/// One conversion "%...": flags, width, precision and type.
struct Conversion {
  bool left = false, sign = false, blank = false, zero = false, alternate = false;
  int64_t width = 0, precision = -1;  // -1 = none
  char kind = 's';
};

constexpr int64_t kMaxWidth = 1000;

class Formatter {
 public:
  Formatter(const Text& format, const Value& values, Budget& budget)
      : format_(format), budget_(budget) {
    const List* const list = values.list();
    mapping_ = values.dict();
    if (list != nullptr && list->tuple)
      values_ = list->items;
    else
      values_ = {values};
    // as in Python, which does not check whether all of a mapping or list was used
    all_needed_ = mapping_ == nullptr && (list == nullptr || list->tuple);
  }

  Text all() {
    budget_.read(format_);
    while (at_ < format_.size()) {
      const size_t sign = std::min(format_.bytes.find('%', at_), format_.size());
      out_.add(format_.cut(at_, sign));
      at_ = sign;
      if (at_ == format_.size()) break;
      ++at_;
      one();
    }
    if (all_needed_ && next_ < values_.size()) stop("%: more values than the format takes");
    return std::move(out_);
  }

 private:
  char here() const {
    if (at_ >= format_.size()) stop("%: a format that ends within a conversion");
    return format_.bytes[at_];
  }

  const Value& take() {
    if (next_ >= values_.size()) stop("%: fewer values than the format takes");
    return values_[next_++];
  }

  int64_t number() {
    if (here() == '*') {
      ++at_;
      const Value& value = take();
      if (!value.whole()) stop("%: * takes a whole number");
      return bounded(value.integer());
    }
    int64_t out = 0;
    for (; here() >= '0' && here() <= '9'; ++at_) out = bounded(out * 10 + (here() - '0'));
    return out;
  }

  static int64_t bounded(int64_t n) {
    if (n > kMaxWidth || n < -kMaxWidth) stop(fmt::format("%: a width beyond {}", kMaxWidth));
    return n;
  }

  void one() {
    budget_.charge();
    const Value* value = nullptr;
    if (here() == '(') {
      const size_t end = format_.bytes.find(')', at_);
      if (end == std::string::npos) stop("%: a name without )");
      if (mapping_ == nullptr) stop("%: a name in the format; expected a mapping");
      const std::string name = format_.bytes.substr(at_ + 1, end - at_ - 1);
      value = mapping_->find(make_text(name), budget_);
      if (value == nullptr) stop(fmt::format("%: the mapping has no \"{}\"", name.substr(0, 40)));
      at_ = end + 1;
    }
    Conversion c;
    flags(c);
    c.width = number();
    if (c.width < 0) c.left = true;
    c.width = std::abs(c.width);
    if (here() == '.') {
      ++at_;
      c.precision = std::max<int64_t>(0, number());
    }
    while (here() == 'h' || here() == 'l' || here() == 'L') ++at_;
    c.kind = here();
    const char mark = format_.marks[at_];
    ++at_;
    if (c.kind == '%') return out_.add("%", mark);
    convert(c, value != nullptr ? *value : take());
  }

  void flags(Conversion& c) {
    for (;; ++at_) {
      switch (here()) {
        case '-':
          c.left = true;
          break;
        case '+':
          c.sign = true;
          break;
        case ' ':
          c.blank = true;
          break;
        case '0':
          c.zero = true;
          break;
        case '#':
          c.alternate = true;
          break;
        default:
          return;
      }
    }
  }

  void convert(const Conversion& c, const Value& value) {
    switch (c.kind) {
      case 's':
        return padded(c, cut(c, to_text(value, budget_)));
      case 'r':
        return padded(c, cut(c, to_repr(value, budget_)));
      case 'c':
        return character(c, value);
      case 'd':
      case 'i':
      case 'u':
        return decimal(c, value);
      case 'x':
      case 'X':
      case 'o':
        return whole(c, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return real(c, value);
      default:
        stop(fmt::format("%: a conversion {:#x}; expected one of diouxXeEfFgGcrs%",
                         static_cast<uint8_t>(c.kind)));
    }
  }

  Text cut(const Conversion& c, const Text& text) const {
    if (c.precision < 0) return text;
    budget_.read(text);
    const std::vector<size_t> ends = character_ends(text);
    const auto n = static_cast<size_t>(c.precision);
    return n >= ends.size() ? text : text.cut(0, n == 0 ? 0 : ends[n - 1]);
  }

  void padded(const Conversion& c, const Text& text) {
    size_t pad = 0;
    if (c.width > 0) {
      budget_.read(text);
      const auto width = static_cast<size_t>(c.width), n = character_ends(text).size();
      pad = width > n ? width - n : 0;
    }
    if (!c.left) out_.add(std::string(pad, ' '));
    out_.add(text);
    if (c.left) out_.add(std::string(pad, ' '));
  }

  void character(const Conversion& c, const Value& value) {
    std::string out;
    if (value.text() != nullptr && character_length(value.text()->bytes, 0) > 0 &&
        character_length(value.text()->bytes, 0) == value.text()->size())
      return padded(c, *value.text());
    if (!value.whole() || value.integer() < 0 || value.integer() > 0x10FFFF ||
        (value.integer() >= 0xD800 && value.integer() < 0xE000))
      stop("%c takes one character, or the number of one");
    append_character(out, static_cast<char32_t>(value.integer()));
    padded(c, Text(out));
  }

  void decimal(const Conversion& c, const Value& value) {
    if (!value.number())
      stop(fmt::format("%{} of {}; expected a number", c.kind, type_name(value)));
    if (!value.whole() && !(std::abs(value.real()) < 9e18)) stop("a number beyond 64 bits");
    const int64_t n = value.whole() ? value.integer() : static_cast<int64_t>(value.real());
    const std::string digits = std::to_string(n);
    number_text(c, n < 0, "", n < 0 ? digits.substr(1) : digits);
  }

  void whole(const Conversion& c, const Value& value) {
    if (!value.whole())
      stop(fmt::format("%{} of {}; expected a whole number", c.kind, type_name(value)));
    const bool negative = value.integer() < 0;
    const auto bits = static_cast<uint64_t>(value.integer());
    const uint64_t n = negative ? ~bits + 1 : bits;
    const std::string digits = c.kind == 'x'   ? fmt::format("{:x}", n)
                               : c.kind == 'X' ? fmt::format("{:X}", n)
                                               : fmt::format("{:o}", n);
    number_text(c, negative, c.alternate ? std::string("0") + c.kind : "", digits);
  }

  void real(const Conversion& c, const Value& value) {
    if (!value.number())
      stop(fmt::format("%{} of {}; expected a number", c.kind, type_name(value)));
    const double x = value.real();
    const std::string format = std::string(c.alternate ? "%#.*" : "%.*") + c.kind;
    char out[2048];  // 309 digits before the point, kMaxWidth after it
    const int n = std::snprintf(out, sizeof out, format.c_str(),
                                static_cast<int>(c.precision < 0 ? 6 : c.precision), std::abs(x));
    number_text(Conversion{c.left, c.sign, c.blank, c.zero, false, c.width, -1, c.kind},
                std::signbit(x) && !std::isnan(x), "", std::string(out, static_cast<size_t>(n)));
  }

  /// Sign, prefix and digits, with zeros before the digits or blanks around all.
  void number_text(const Conversion& c,
                   bool negative,
                   const std::string& prefix,
                   const std::string& digits) {
    const auto size = static_cast<int64_t>(digits.size());
    std::string zeros(static_cast<size_t>(std::max<int64_t>(0, c.precision - size)), '0');
    const std::string head = (negative ? "-" : c.sign ? "+" : c.blank ? " " : "") + prefix;
    const auto n = static_cast<int64_t>(head.size() + zeros.size()) + size;
    const auto pad = static_cast<size_t>(std::max<int64_t>(0, c.width - n));
    if (c.zero && !c.left) zeros.append(pad, '0');
    if (!c.left && !c.zero) out_.add(std::string(pad, ' '));
    out_.add(head + zeros + digits);
    if (c.left) out_.add(std::string(pad, ' '));
  }

  const Text& format_;
  Budget& budget_;
  std::vector<Value> values_;
  const Dict* mapping_ = nullptr;
  bool all_needed_ = true;
  size_t at_ = 0, next_ = 0;
  Text out_;
};

}  // namespace

Text percent_formatted(const Text& format, const Value& values, Budget& budget) {
  return Formatter(format, values, budget).all();
}

}  // namespace tessera::text::jinja
