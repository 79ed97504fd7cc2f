#include "tessera/text/jinja/jinja_filters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "tessera/text/jinja/jinja_given.h"

namespace tessera::text::jinja {
namespace {

/// Lists of `count` items; the last one is padded with `fill` if given and not none.
Value batches(const Value& of, int64_t count, const Value& fill, Budget& budget) {
  if (count < 1) stop(fmt::format("batch: linecount is {}; expected 1 or more", count));
  std::vector<Value> out, row;
  const auto end_row = [&] { add_item(out, make_list(std::exchange(row, {}))); };
  for (const Value& item : items_of(of, budget)) {
    if (static_cast<int64_t>(row.size()) == count) end_row();
    row.push_back(item);
  }
  if (row.empty()) return make_list(std::move(out));
  while (!fill.none() && static_cast<int64_t>(row.size()) < count) add_item(row, fill);
  end_row();
  return make_list(std::move(out));
}

/// `count` lists of nearly the same length, the longer ones first.
Value slices(const Value& of, int64_t count, const Value& fill, Budget& budget) {
  if (count < 1 || count > static_cast<int64_t>(Budget::kMaxItems))
    stop(fmt::format("slice: slices is {}; expected 1 to {}", count, Budget::kMaxItems));
  const std::vector<Value> items = items_of(of, budget);
  budget.touch(static_cast<size_t>(count) * Budget::kItem);
  const size_t n = static_cast<size_t>(count), each = items.size() / n, longer = items.size() % n;
  std::vector<Value> out;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t length = each + (i < longer ? 1 : 0);
    const auto begin = items.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<Value> part(begin, begin + static_cast<std::ptrdiff_t>(length));
    if (!fill.none() && i >= longer) part.push_back(fill);
    add_item(out, make_list(std::move(part)));
    at += length;
  }
  return make_list(std::move(out));
}

Value group(Value grouper, std::vector<Value> items) {
  const Value made = make_list({std::move(grouper), make_list(std::move(items))}, true);
  List out = *made.list();
  out.group = true;
  return {std::make_shared<const List>(std::move(out))};
}

/// Pairs of a value of the attribute and the items that have it, in the order of the values.
Value groups(const Value& of, Given& given, Budget& budget) {
  const Value attribute = given.need("attribute");
  const Value* const otherwise = given.take("default");
  const bool cases = given.flag("case_sensitive", false);
  const auto value_of_item = [&](const Value& item) {
    Value value = path_of(item, attribute, budget);
    return value.undefined() && otherwise != nullptr ? *otherwise : value;
  };
  std::vector<Value> pairs;  // (value, item), so that the value is found once
  for (const Value& item : items_of(of, budget))
    pairs.push_back(make_list({value_of_item(item), item}, true));
  const Value first{int64_t{0}};
  pairs = sorted(std::move(pairs), &first, cases, false, budget);
  std::vector<Value> out, items;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Value& value = pairs[i].list()->items[0];
    items.push_back(pairs[i].list()->items[1]);
    if (i + 1 < pairs.size() &&
        equal(sort_key(value, cases, budget),
              sort_key(pairs[i + 1].list()->items[0], cases, budget), budget))
      continue;
    const size_t begin = i + 1 - items.size();
    out.push_back(group(pairs[begin].list()->items[0], std::exchange(items, {})));
  }
  return make_list(std::move(out));
}

/// Python's round(): half to even for an integer, for a float the nearest decimal.
Value rounded(const Value& of, int64_t precision) {
  if (of.whole()) {
    if (precision >= 0) return {of.integer()};
    if (precision < -18) return {int64_t{0}};
    int64_t unit = 1;
    for (int64_t i = 0; i < -precision; ++i) unit *= 10;
    int64_t whole = of.integer() / unit;
    const int64_t rest = std::abs(of.integer() % unit), half = unit / 2;
    const bool up = rest > half || (rest == half && whole % 2 != 0);
    if (up) whole += of.integer() < 0 ? -1 : 1;
    int64_t out = 0;
    if (__builtin_mul_overflow(whole, unit, &out)) stop("a number beyond 64 bits");
    return {out};
  }
  const double value = of.real();
  if (!std::isfinite(value) || precision > 323) return {value};
  if (precision < -308) return {std::copysign(0.0, value)};
  if (precision >= 0)
    return {
        std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr)};
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return {std::nearbyint(value / unit) * unit};
}

Value round_filter(const Value& of, Given& given) {
  if (!of.number()) stop(fmt::format("round of {}; expected a number", type_name(of)));
  const int64_t precision = given.integer("precision", 0);
  const Text* const named = given.text_or_null("method");
  const std::string method = named == nullptr ? "common" : named->bytes;
  if (method == "common") return rounded(of, precision);
  if (method != "ceil" && method != "floor")
    stop(fmt::format("round: method is \"{}\"; expected common, ceil or floor",
                     method.substr(0, 40)));
  const double unit = std::pow(10.0, static_cast<double>(precision)), at = of.real() * unit;
  return {(method == "ceil" ? std::ceil(at) : std::floor(at)) / unit};
}

/// Escapes HTML as markupsafe does.
Text escaped(const Text& text) {
  Text out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.bytes.find_first_of("&<>'\"", at), text.size());
    out.add(text.cut(at, end));
    if (end == text.size()) break;
    const char c = text.bytes[end];
    out.add(c == '&'    ? "&amp;"
            : c == '<'  ? "&lt;"
            : c == '>'  ? "&gt;"
            : c == '\'' ? "&#39;"
                        : "&#34;",
            text.marks[end]);
    at = end + 1;
  }
  return out;
}

Text marked_up(Text text) {
  text.markup = true;
  return text;
}

/// Escapes for the path of a URL, or for its query, where a blank becomes "+" and "/" is escaped.
Text url_quoted(const Text& text, bool query) {
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i], mark = text.marks[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos;
    if (plain || (c == '/' && !query))
      out.add(std::string_view(&c, 1), mark);
    else if (c == ' ' && query)
      out.add("+", mark);
    else
      out.add(fmt::format("%{:02X}", static_cast<uint8_t>(c)), mark);
  }
  return out;
}

Text url_encoded(const Value& of, Budget& budget) {
  constexpr size_t kEncoding = 8;  // of a byte, in addition to reading it
  const auto quoted = [&](const Value& value, bool query) {
    const Text text = to_text(value, budget);
    budget.touch(kEncoding * text.size());
    return url_quoted(text, query);
  };
  if (!of.dict() && !of.list()) return quoted(of, false);
  Text out;
  const auto add = [&](const Value& key, const Value& value) {
    if (out.size() > 0) out.add("&");
    out.add(quoted(key, true));
    out.add("=");
    out.add(quoted(value, true));
  };
  if (of.dict())
    for (size_t i = 0; i < of.dict()->items.size(); ++i)
      add(of.dict()->key(i), of.dict()->items[i].second);
  if (of.list())
    for (const Value& pair : of.list()->items) {
      const std::vector<Value> items = items_of(pair, budget);
      if (items.size() != 2) stop("urlencode: expected a text, a mapping or pairs");
      add(items[0], items[1]);
    }
  return out;
}

/// str.center() of Python.
Text centered(const Text& text, int64_t width) {
  const auto n = static_cast<int64_t>(character_ends(text).size());
  if (width <= n) return text;
  if (width > static_cast<int64_t>(Budget::kMaxText)) stop("center: a width beyond 4 MiB");
  const int64_t pad = width - n, left = pad / 2 + (pad & width & 1);
  Text out(std::string(static_cast<size_t>(left), ' '));
  out.add(text);
  out.add(std::string(static_cast<size_t>(pad - left), ' '));
  return out;
}

}  // namespace

std::optional<Value> list_filter(const std::string& name,
                                 const Value& of,
                                 const Arguments& arguments,
                                 Budget& budget) {
  Given given("filter", name, arguments);
  Value out;
  if (name == "groupby") {
    out = groups(of, given, budget);
  } else if (name == "batch" || name == "slice") {
    // no count is one of 0, which is refused
    const int64_t count = given.integer(name == "batch" ? "linecount" : "slices", 0);
    const Value* const given_fill = given.take("fill_with");
    const Value fill = given_fill == nullptr ? make_none() : *given_fill;
    out = name == "batch" ? batches(of, count, fill, budget) : slices(of, count, fill, budget);
  } else {
    return std::nullopt;
  }
  given.end();
  return out;
}

std::optional<Value> format_filter(const std::string& name,
                                   const Value& of,
                                   const Arguments& arguments,
                                   Budget& budget) {
  Given given("filter", name, arguments);
  const auto done = [&](Value value) {
    given.end();
    return value;
  };
  if (name == "round") return done(round_filter(of, given));
  if (name == "safe") return done(make_text(marked_up(to_text(of, budget))));
  if (name == "escape" || name == "e" || name == "forceescape") {
    if (of.text() != nullptr && of.text()->markup && name != "forceescape") return done(of);
    return done(make_text(marked_up(escaped(to_text(of, budget)))));
  }
  if (name == "urlencode") return done(make_text(url_encoded(of, budget)));
  if (name == "center")
    return done(make_text(centered(to_text(of, budget), given.integer("width", 80))));
  if (name == "format") {
    if (!arguments.values.empty() && !arguments.named.empty())
      stop("format: arguments by place and by name; expected one kind");
    if (arguments.named.empty())
      return make_text(
          percent_formatted(to_text(of, budget), make_list(arguments.values, true), budget));
    std::vector<std::pair<Text, Value>> named;
    for (const auto& [key, value] : arguments.named) named.emplace_back(Text(key), value);
    return make_text(percent_formatted(to_text(of, budget), make_dict(std::move(named)), budget));
  }
  return std::nullopt;
}

}  // namespace tessera::text::jinja
