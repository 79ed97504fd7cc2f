#include "tessera/text/jinja/jinja_library.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "tessera/text/jinja/jinja_filters.h"
#include "tessera/text/jinja/jinja_find.h"
#include "tessera/text/jinja/jinja_given.h"
#include "tessera/text/utf8.h"

namespace tessera::text::jinja {
namespace {

bool blank_at(const Text& text, size_t at) {
  const size_t length = character_length(text.bytes, at);
  if (length == 0) return false;
  const char32_t c = code_point_at(text.bytes, at, length);
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

/// Strips characters of `which` (none = white space) at both ends.
Text stripped(const Text& text, const Text* which, bool left, bool right, Budget& budget) {
  const auto goes = [&](size_t begin, size_t end) {
    if (which == nullptr) return blank_at(text, begin);
    budget.touch(which->size());
    return which->bytes.find(text.bytes.substr(begin, end - begin)) != std::string::npos;
  };
  const std::vector<size_t> ends = character_ends(text);
  size_t first = 0, last = ends.size();
  const auto begin_of = [&](size_t i) { return i == 0 ? 0 : ends[i - 1]; };
  while (left && first < last && goes(begin_of(first), ends[first])) ++first;
  while (right && last > first && goes(begin_of(last - 1), ends[last - 1])) --last;
  return text.cut(begin_of(first), begin_of(last));
}

constexpr size_t kPiece = 64;  // cost of a part of a text in addition to its bytes

Text replaced(const Text& text, const Text& from, const Text& to, int64_t most, Budget& budget) {
  if (from.size() == 0) stop("replace: an empty text to look for");
  const Finder finder(from.bytes);
  Text out;
  size_t at = 0;
  for (; most != 0; --most) {
    const size_t found = finder.next(text.bytes, at);
    if (found == std::string::npos) break;
    budget.touch(kPiece);
    out.add(text.cut(at, found));
    out.add(to);
    at = found + from.size();
  }
  out.add(text.cut(at, text.size()));
  return out;
}

std::vector<Value> split(const Text& text, const Text* by, int64_t most, Budget& budget) {
  std::vector<Value> out;
  const auto add = [&](size_t begin, size_t end) {
    budget.touch(kPiece + end - begin);
    add_item(out, make_text(text.cut(begin, end)));
  };
  if (by != nullptr) {
    if (by->size() == 0) stop("split: an empty separator");
    const Finder finder(by->bytes);
    size_t at = 0;
    for (; most != 0; --most) {
      const size_t found = finder.next(text.bytes, at);
      if (found == std::string::npos) break;
      add(at, found);
      at = found + by->size();
    }
    add(at, text.size());
    return out;
  }
  size_t at = 0;
  const auto next = [&] { at += std::max<size_t>(1, character_length(text.bytes, at)); };
  for (;; --most) {
    while (at < text.size() && blank_at(text, at)) next();
    if (at >= text.size()) return out;
    const size_t begin = at;
    if (most == 0) {
      add(begin,
          begin + stripped(text.cut(begin, text.size()), nullptr, false, true, budget).size());
      return out;
    }
    while (at < text.size() && !blank_at(text, at)) next();
    add(begin, at);
  }
}

std::vector<Value> split_from_end(const Text& text, const Text& by, int64_t most, Budget& budget) {
  if (by.size() == 0) stop("rsplit: an empty separator");
  const std::string backward(text.bytes.rbegin(), text.bytes.rend());
  const std::string wanted(by.bytes.rbegin(), by.bytes.rend());
  const Finder finder(wanted);
  std::vector<Value> out;
  const auto add = [&](size_t begin, size_t end) {
    budget.touch(kPiece + end - begin);
    add_item(out, make_text(text.cut(begin, end)));
  };
  size_t end = text.size();
  for (; most != 0; --most) {
    const size_t found = finder.next(backward, text.size() - end);
    if (found == std::string::npos) break;
    add(text.size() - found, end);
    end = text.size() - found - by.size();
  }
  add(0, end);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Value> lines_of(const Text& text, Budget& budget) {
  std::vector<Value> out;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.bytes.find_first_of("\r\n", begin);
    if (end == std::string::npos) end = text.size();
    budget.touch(kPiece + end - begin);
    add_item(out, make_text(text.cut(begin, end)));
    begin = end + (text.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return out;
}

/// "{}", "{0}" and "{name}" of Python's format().
Text formatted(const Text& text, const Arguments& arguments, Budget& budget) {
  Text out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes[at];
    if (c != '{' && c != '}') {
      const size_t end = std::min(text.bytes.find_first_of("{}", at), text.size());
      out.add(text.cut(at, end));
      at = end - 1;
      continue;
    }
    budget.touch(kPiece + arguments.named.size() * Budget::kItem);
    if (at + 1 < text.size() && text.bytes[at + 1] == c) {
      out.add(text.cut(at, at + 1));
      ++at;
      continue;
    }
    const size_t end = text.bytes.find('}', at);
    if (c == '}' || end == std::string::npos) stop("format: a single brace");
    const std::string name = text.bytes.substr(at + 1, end - at - 1);
    const Value* value = nullptr;
    if (name.find_first_not_of("0123456789") == std::string::npos && name.size() < 4) {
      const size_t i = name.empty() ? next++ : static_cast<size_t>(std::stoi(name));
      if (i < arguments.values.size()) value = &arguments.values[i];
    }
    for (const auto& [known, named] : arguments.named)
      if (known == name) value = &named;
    if (value == nullptr)
      stop(fmt::format("format: {{{}}}; expected a place or a name that is given",
                       name.substr(0, 40)));
    out.add(to_text(*value, budget));
    at = end;
  }
  return out;
}

enum class Case { lower, upper, capital, title };

/// Converts ASCII letters only; other letters of template text do not change, and lower case covers
/// all letters.
Text in_case(const Text& text, Case wanted) {
  Text out;
  bool word = false;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(1, character_length(text.bytes, at));
    const char c = text.bytes[at];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool small = c >= 'a' && c <= 'z';
    const bool up = wanted == Case::upper || (wanted == Case::capital && at == 0) ||
                    (wanted == Case::title && !word);
    word = letter || length > 1;
    if (length > 1) {
      if (up) stop("upper case of letters beyond ASCII");
      std::string changed;
      append_lower_case(changed, code_point_at(text.bytes, at, length));
      out.add(changed, text.marks[at]);
    } else {
      const int other = letter && small == up ? (small ? -32 : 32) : 0;
      out.bytes += static_cast<char>(c + other);
      out.marks += text.marks[at];
    }
    at += length;
  }
  return out;
}

bool ends_so(const Value& of, const Text& text, bool start, Budget& budget) {
  const auto one = [&](const Value& end) {
    if (end.text() == nullptr) stop("startswith and endswith take texts");
    budget.touch(std::min(end.text()->size(), text.size()));
    return start ? text.bytes.starts_with(end.text()->bytes)
                 : text.bytes.ends_with(end.text()->bytes);
  };
  if (of.list() && of.list()->tuple)
    return std::any_of(of.list()->items.begin(), of.list()->items.end(), one);
  return one(of);
}

Value text_method(const Text& text, const std::string& name, Given& given, Budget& budget) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Text* which = given.text_or_null("chars");
    return make_text(stripped(text, which, name != "rstrip", name != "lstrip", budget));
  }
  if (name == "startswith" || name == "endswith")
    return {ends_so(given.need("prefix"), text, name == "startswith", budget)};
  if (name == "split" || name == "rsplit") {
    const Text* by = given.text_or_null("sep");
    const int64_t most = given.integer("maxsplit", -1);
    if (name == "rsplit" && most >= 0) {
      if (by == nullptr) stop("rsplit: expected sep");
      return make_list(split_from_end(text, *by, most, budget));
    }
    return make_list(split(text, by, most, budget));
  }
  if (name == "splitlines") return make_list(lines_of(text, budget));
  if (name == "replace") {
    const Text &from = given.text("old"), &to = given.text("new");
    return make_text(replaced(text, from, to, given.integer("count", -1), budget));
  }
  if (name == "lower") return make_text(in_case(text, Case::lower));
  if (name == "upper") return make_text(in_case(text, Case::upper));
  if (name == "capitalize") return make_text(in_case(text, Case::capital));
  if (name == "title") return make_text(in_case(text, Case::title));
  if (name == "removeprefix" || name == "removesuffix") {
    const Text& end = given.text("prefix");
    if (name == "removeprefix")
      return make_text(text.bytes.starts_with(end.bytes) ? text.cut(end.size(), text.size())
                                                         : text);
    return make_text(text.bytes.ends_with(end.bytes) ? text.cut(0, text.size() - end.size())
                                                     : text);
  }
  if (name == "find" || name == "rfind" || name == "index") {
    const Text& what = given.text("sub");
    const size_t at = name == "rfind"    ? find_last(text.bytes, what.bytes)
                      : what.size() == 0 ? 0
                                         : Finder(what.bytes).next(text.bytes);
    if (at == std::string::npos) {
      if (name == "index") stop("index: the text is not there");
      return {int64_t{-1}};
    }
    return {static_cast<int64_t>(character_ends(text.cut(0, at)).size())};
  }
  if (name == "count") {
    const Text& what = given.text("sub");
    if (what.size() == 0) stop("count: an empty text to look for");
    const Finder finder(what.bytes);
    int64_t n = 0;
    for (size_t at = 0; (at = finder.next(text.bytes, at)) != std::string::npos; at += what.size())
      ++n;
    return {n};
  }
  if (name == "isdigit")
    return {text.size() > 0 && std::all_of(text.bytes.begin(), text.bytes.end(),
                                           [](char c) { return c >= '0' && c <= '9'; })};
  if (name == "join") {
    Text out;
    bool first = true;
    for (const Value& item : items_of(given.need("iterable"), budget)) {
      if (item.text() == nullptr) stop(fmt::format("join: {}; expected texts", type_name(item)));
      if (!std::exchange(first, false)) out.add(text);
      out.add(*item.text());
    }
    return make_text(std::move(out));
  }
  stop("a method " + name);
}

constexpr const char* kTextMethods[] = {
    "strip",  "lstrip",       "rstrip",       "startswith", "endswith", "split",
    "rsplit", "splitlines",   "replace",      "lower",      "upper",    "capitalize",
    "title",  "removeprefix", "removesuffix", "find",       "rfind",    "index",
    "count",  "isdigit",      "join",         "format"};
constexpr const char* kChanging[] = {"append",  "pop",     "clear",     "extend",
                                     "insert",  "remove",  "sort",      "update",
                                     "reverse", "popitem", "setdefault"};

std::vector<Value> pairs_of(const Dict& dict) {
  std::vector<Value> out;
  for (size_t i = 0; i < dict.items.size(); ++i)
    out.push_back(make_list({dict.key(i), dict.items[i].second}, true));
  return out;
}

}  // namespace

Value path_of(Value value, const Value& path, Budget& budget) {
  if (path.text() == nullptr) return item_of(value, path, budget);
  budget.read(path);
  const Text dot(".");
  for (const Value& part : split(*path.text(), &dot, -1, budget)) {
    const std::string& name = part.text()->bytes;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    const bool digits = error == std::errc() && end == name.data() + name.size();
    value = item_of(value, digits ? Value{number} : part, budget);
  }
  return value;
}

Value sort_key(const Value& value, bool cases, Budget& budget) {
  if (cases || value.text() == nullptr) return value;
  budget.read(value);
  return make_text(in_case(*value.text(), Case::lower));
}

std::vector<Value> sorted(
    std::vector<Value> items, const Value* attribute, bool cases, bool reverse, Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    const Value key = attribute == nullptr ? item : path_of(item, *attribute, budget);
    keyed.emplace_back(sort_key(key, cases, budget), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    const int order = compare(a.first, b.first, budget);
    return reverse ? order > 0 : order < 0;
  });
  for (size_t i = 0; i < keyed.size(); ++i) items[i] = std::move(keyed[i].second);
  return items;
}

namespace {

Arguments behind(const Arguments& arguments, size_t n) {
  Arguments out = arguments;
  out.values.erase(out.values.begin(), out.values.begin() + static_cast<std::ptrdiff_t>(
                                                                std::min(n, out.values.size())));
  return out;
}

/// select, reject, selectattr, rejectattr.
Value selected(const std::string& name,
               const Value& of,
               const Arguments& arguments,
               Budget& budget) {
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  const size_t at = by_attribute ? 1 : 0;
  if (arguments.values.size() < at) stop(name + ": expected an attribute");
  const Value* test = arguments.values.size() > at ? &arguments.values[at] : nullptr;
  if (test != nullptr && test->text() == nullptr) stop(name + ": expected the name of a test");
  std::vector<Value> out;
  if (!truth(of)) return make_list({});  // as in Jinja, for any undefined value
  for (const Value& item : items_of(of, budget)) {
    const Value value = by_attribute ? path_of(item, arguments.values[0], budget) : item;
    const bool holds =
        test == nullptr ? truth(value)
                        : apply_test(test->text()->bytes, value, behind(arguments, at + 1), budget);
    if (holds == wanted) out.push_back(item);
  }
  return make_list(std::move(out));
}

Value mapped(const Value& of, const Arguments& arguments, Budget& budget) {
  std::vector<Value> out;
  const Value* attribute = nullptr;
  const Value* otherwise = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") otherwise = &value;
  }
  if (attribute == nullptr && (arguments.values.empty() || arguments.values[0].text() == nullptr))
    stop("map: expected a filter or attribute=");
  if (!truth(of)) return make_list({});
  for (const Value& item : items_of(of, budget)) {
    if (attribute == nullptr) {
      out.push_back(
          apply_filter(arguments.values[0].text()->bytes, item, behind(arguments, 1), budget));
      continue;
    }
    Value value = path_of(item, *attribute, budget);
    out.push_back(value.undefined() && otherwise != nullptr ? *otherwise : value);
  }
  return make_list(std::move(out));
}

Text indented(const Text& text, const Text& by, bool first, bool blank) {
  Text out;
  bool begun = false;
  size_t begin = 0;
  for (;;) {
    size_t end = text.bytes.find('\n', begin);
    const bool last = end == std::string::npos;
    if (last) end = text.size();
    const Text line = text.cut(begin, end);
    if ((begun || first) && (blank || line.size() > 0)) out.add(by);
    begun = true;
    out.add(text.cut(begin, last ? end : end + 1));
    if (last) return out;
    begin = end + 1;
  }
}

Value to_integer(const Value& of, const Value* otherwise, Budget& budget) {
  const Value other = otherwise == nullptr ? Value{int64_t{0}} : *otherwise;
  if (of.whole()) return {of.integer()};
  if (of.number()) {
    const double value = std::trunc(of.real());
    return std::abs(value) < 9e18 ? Value{static_cast<int64_t>(value)} : other;
  }
  if (of.text() == nullptr) return other;
  const Text text = stripped(*of.text(), nullptr, true, true, budget);
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.bytes.data(), text.bytes.data() + text.size(), value);
  if (error == std::errc() && end == text.bytes.data() + text.size()) return {value};
  char* stop_at = nullptr;
  const double real = std::strtod(text.bytes.c_str(), &stop_at);
  if (text.size() > 0 && *stop_at == '\0' && std::abs(real) < 9e18)
    return {static_cast<int64_t>(real)};
  return other;
}

}  // namespace

std::optional<Value> method_of(const Value& of, const std::string& name, Budget& budget) {
  const auto is_in = [&](const auto& names) {
    return std::any_of(std::begin(names), std::end(names),
                       [&](const char* n) { return name == n; });
  };
  if (of.text() && is_in(kTextMethods))
    return make_call(name, [of, name, &budget](Arguments& arguments) {
      budget.read(of);
      if (name == "format") {
        return make_text(formatted(*of.text(), arguments, budget));
      }
      Given given("method", name, arguments);
      Value out = text_method(*of.text(), name, given, budget);
      if (name != "splitlines") given.end();
      return out;
    });
  if ((of.list() || of.dict()) && is_in(kChanging))
    return make_call(name, [name](Arguments&) -> Value {
      stop(fmt::format("{}(): a template cannot change its values", name));
    });
  if (of.list() && (name == "index" || name == "count"))
    return make_call(name, [of, name, &budget](Arguments& arguments) -> Value {
      Given given("method", name, arguments);
      const Value& what = given.need("value");
      int64_t n = 0;
      for (size_t i = 0; i < of.list()->items.size(); ++i)
        if (equal(of.list()->items[i], what, budget)) {
          if (name == "index") return {static_cast<int64_t>(i)};
          ++n;
        }
      if (name == "index") stop("index: the value is not there");
      return {n};
    });
  if (of.dict() && (name == "items" || name == "keys" || name == "values" || name == "get"))
    return make_call(name, [of, name, &budget](Arguments& arguments) {
      const Dict& dict = *of.dict();
      Given given("method", name, arguments);
      if (name == "get") {
        const Value key = given.need("key");
        const Value* otherwise = given.take("default");
        given.end();
        const Value* found = dict.find(key, budget);
        return found != nullptr ? *found : otherwise != nullptr ? *otherwise : make_none();
      }
      given.end();
      budget.charge(2 * dict.weight);
      if (name == "items") return make_list(pairs_of(dict));
      std::vector<Value> out;
      for (size_t i = 0; i < dict.items.size(); ++i)
        out.push_back(name == "keys" ? dict.key(i) : dict.items[i].second);
      return make_list(std::move(out));
    });
  return std::nullopt;
}

Value attribute_of(const Value& of, const std::string& name, Budget& budget) {
  budget.charge();
  if (of.undefined())
    stop(fmt::format("\"{}\" is undefined and has no attribute .{}",
                     std::get<Undefined>(of.data).name, name));
  if (Namespace* space = of.space()) {
    budget.touch(space->items.size() * Budget::kItem + name.size());
    for (const auto& [known, value] : space->items)
      if (known == name) return value;
    return make_undefined(name);
  }
  if (name.starts_with("__")) return make_undefined(name);
  if (auto method = method_of(of, name, budget)) return *method;
  if (of.list() && of.list()->group && (name == "grouper" || name == "list"))
    return of.list()->items[name == "grouper" ? 0 : 1];
  if (of.dict() && !of.dict()->numbers)
    if (const Value* found = of.dict()->find(name, budget)) return *found;
  return make_undefined(name);
}

Value item_of(const Value& of, const Value& key, Budget& budget) {
  budget.charge();
  if (of.undefined())
    stop(fmt::format("\"{}\" is undefined and has no items", std::get<Undefined>(of.data).name));
  if (of.dict())
    if (const Value* found = of.dict()->find(key, budget)) return *found;
  if (key.text()) return attribute_of(of, key.text()->bytes, budget);
  if ((of.list() || of.text()) && key.whole()) {
    const auto n = static_cast<int64_t>(length_of(of, budget));
    if (of.text()) budget.read(of);
    const int64_t i = key.integer() < 0 ? key.integer() + n : key.integer();
    if (i < 0 || i >= n) return make_undefined("item");
    if (of.list()) return of.list()->items[static_cast<size_t>(i)];
    const auto ends = character_ends(*of.text());
    return make_text(of.text()->cut(i == 0 ? 0 : ends[static_cast<size_t>(i - 1)],
                                    ends[static_cast<size_t>(i)]));
  }
  return make_undefined("item");
}

namespace {

Value filtered(const std::string& name,
               const Value& of,
               const Arguments& arguments,
               Budget& budget) {
  if (name == "selectattr" || name == "rejectattr" || name == "select" || name == "reject")
    return selected(name, of, arguments, budget);
  if (name == "map") return mapped(of, arguments, budget);
  Given given("filter", name, arguments);
  const auto as_text = [&] { return to_text(of, budget); };
  const auto done = [&](Value value) {
    given.end();
    return value;
  };
  if (name == "tojson") {
    JsonStyle style;
    style.ascii = given.flag("ensure_ascii", false);
    style.indent = static_cast<int>(std::min<int64_t>(64, given.integer("indent", -1)));
    if (const Value* separators = given.take("separators")) {
      const List* list = separators->list();
      if (list == nullptr || list->items.size() != 2 || !list->items[0].text() ||
          !list->items[1].text())
        stop("tojson: separators; expected two texts");
      style.comma = list->items[0].text()->bytes;
      style.colon = list->items[1].text()->bytes;
    }
    style.sorted = given.flag("sort_keys", false);
    return done(make_text(to_json(of, style, budget)));
  }
  if (name == "length" || name == "count")
    return done({static_cast<int64_t>(length_of(of, budget))});
  if (name == "trim") {
    const Text* which = given.text_or_null("chars");
    return done(make_text(stripped(as_text(), which, true, true, budget)));
  }
  if (name == "string") return done(make_text(as_text()));
  if (name == "items") {
    if (of.undefined()) return done(make_list({}));
    if (!of.dict()) stop(fmt::format("filter items of {}; expected a mapping", type_name(of)));
    return done(make_list(pairs_of(*of.dict())));
  }
  if (name == "default" || name == "d") {
    const Value* otherwise = given.take("default_value");
    const bool falsy = given.flag("boolean", false);
    return done(of.undefined() || (falsy && !truth(of)) ? (otherwise ? *otherwise : make_text(""))
                                                        : of);
  }
  if (name == "join") {
    const Value* between = given.take("d");
    const Value* attribute = given.take("attribute");
    const Text separator = between == nullptr ? Text() : to_text(*between, budget);
    Text out;
    bool first = true;
    for (const Value& item : items_of(of, budget)) {
      if (!std::exchange(first, false)) out.add(separator);
      out.add(to_text(attribute == nullptr ? item : path_of(item, *attribute, budget), budget));
    }
    return done(make_text(std::move(out)));
  }
  if (name == "list") return done(make_list(items_of(of, budget)));
  if (name == "lower") return done(make_text(in_case(as_text(), Case::lower)));
  if (name == "upper") return done(make_text(in_case(as_text(), Case::upper)));
  if (name == "capitalize") return done(make_text(in_case(as_text(), Case::capital)));
  if (name == "title") return done(make_text(in_case(as_text(), Case::title)));
  if (name == "replace") {
    const Text &from = given.text("old"), &to = given.text("new");
    return done(make_text(replaced(as_text(), from, to, given.integer("count", -1), budget)));
  }
  if (name == "first" || name == "last") {
    const std::vector<Value> items = items_of(of, budget);
    return done(items.empty()     ? make_undefined(name)
                : name == "first" ? items.front()
                                  : items.back());
  }
  if (name == "reverse") {
    std::vector<Value> items = items_of(of, budget);
    std::reverse(items.begin(), items.end());
    if (!of.text()) return done(make_list(std::move(items)));
    Text out;
    for (const Value& item : items) out.add(*item.text());
    return done(make_text(std::move(out)));
  }
  if (name == "dictsort") {
    if (!of.dict()) stop(fmt::format("filter dictsort of {}; expected a mapping", type_name(of)));
    const bool cases = given.flag("case_sensitive", false);
    const Value* by = given.take("by");
    const Value which{int64_t{by != nullptr && by->text() && by->text()->bytes == "value" ? 1 : 0}};
    const bool reverse = given.flag("reverse", false);
    return done(make_list(sorted(pairs_of(*of.dict()), &which, cases, reverse, budget)));
  }
  if (name == "sort") {
    const bool reverse = given.flag("reverse", false);
    const bool cases = given.flag("case_sensitive", false);
    const Value* attribute = given.take("attribute");
    return done(make_list(sorted(items_of(of, budget), attribute, cases, reverse, budget)));
  }
  if (name == "min" || name == "max") {
    const bool cases = given.flag("case_sensitive", false);
    const Value* attribute = given.take("attribute");
    std::vector<Value> items = items_of(of, budget);
    if (items.empty()) return done(make_undefined(name));
    const Value* best = &items[0];
    const auto key = [&](const Value& v) {
      return sort_key(attribute ? path_of(v, *attribute, budget) : v, cases, budget);
    };
    for (const Value& item : items) {
      const int order = compare(key(item), key(*best), budget);
      if (name == "min" ? order < 0 : order > 0) best = &item;
    }
    return done(*best);
  }
  if (name == "unique") {
    const bool cases = given.flag("case_sensitive", false);
    const Value* attribute = given.take("attribute");
    std::vector<Value> out, keys;
    for (const Value& item : items_of(of, budget)) {
      const Value key =
          sort_key(attribute ? path_of(item, *attribute, budget) : item, cases, budget);
      if (std::any_of(keys.begin(), keys.end(),
                      [&](const Value& k) { return equal(k, key, budget); }))
        continue;
      keys.push_back(key);
      out.push_back(item);
    }
    return done(make_list(std::move(out)));
  }
  if (name == "indent") {
    const Value* width = given.take("width");
    const bool first = given.flag("first", false), blank = given.flag("blank", false);
    Text by(std::string(4, ' '));
    if (width != nullptr && width->text()) by = *width->text();
    if (width != nullptr && width->whole())
      by = Text(
          std::string(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1024)), ' '));
    return done(make_text(indented(as_text(), by, first, blank)));
  }
  if (name == "int") {
    const Value* otherwise = given.take("default");
    return done(to_integer(of, otherwise, budget));
  }
  if (name == "float") {
    if (of.number()) return done({of.real()});
    const std::string text = as_text().bytes;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    return done({!text.empty() && *end == '\0' ? value : 0.0});
  }
  if (name == "abs" && of.number())
    return done(of.whole() ? Value{std::max(of.integer(), -of.integer())}
                           : Value{std::abs(of.real())});
  if (name == "sum") {
    Value total{int64_t{0}};
    for (const Value& item : items_of(of, budget)) {
      if (!item.number()) stop("sum: expected numbers");
      total = total.whole() && item.whole() ? Value{total.integer() + item.integer()}
                                            : Value{total.real() + item.real()};
    }
    return done(total);
  }
  if (const auto made = format_filter(name, of, arguments, budget)) return *made;
  if (const auto made = list_filter(name, of, arguments, budget)) return *made;
  stop(fmt::format("there is no filter \"{}\"", name.substr(0, 40)));
}

}  // namespace

Value apply_filter(const std::string& name,
                   const Value& of,
                   const Arguments& arguments,
                   Budget& budget) {
  budget.charge();
  budget.read(of);
  budget.read(arguments);
  return budget.made(filtered(name, of, arguments, budget));
}

bool apply_test(const std::string& name,
                const Value& of,
                const Arguments& arguments,
                Budget& budget) {
  budget.charge();
  Given given("test", name, arguments);
  const auto done = [&](bool value) {
    given.end();
    return value;
  };
  if (name == "defined") return done(!of.undefined());
  if (name == "undefined") return done(of.undefined());
  if (name == "none") return done(of.none());
  if (name == "string") return done(of.text() != nullptr);
  if (name == "mapping") return done(of.dict() != nullptr);
  if (name == "iterable") return done(of.undefined() || of.text() || of.list() || of.dict());
  if (name == "sequence") return done(of.undefined() || of.text() || of.list() || of.dict());
  if (name == "number") return done(of.number());
  if (name == "integer") return done(of.is<int64_t>());
  if (name == "float") return done(of.is<double>());
  if (name == "boolean") return done(of.is<bool>());
  if (name == "true" || name == "false")
    return done(of.is<bool>() && std::get<bool>(of.data) == (name == "true"));
  if (name == "callable") return done(of.callable() != nullptr);
  if (name == "odd" || name == "even") {
    if (!of.whole()) stop("odd and even take whole numbers");
    return done((of.integer() % 2 != 0) == (name == "odd"));
  }
  if (name == "divisibleby") {
    const int64_t by = given.integer("num", 0);
    if (!of.whole() || by == 0) stop("divisibleby takes whole numbers, by one that is not 0");
    return done(by == -1 || of.integer() % by == 0);
  }
  if (name == "lower" || name == "upper") {
    budget.read(of);
    const Text text = to_text(of, budget);
    return done(in_case(text, name == "lower" ? Case::lower : Case::upper).bytes == text.bytes);
  }
  const std::string sign = name == "eq" || name == "equalto"       ? "=="
                           : name == "ne"                          ? "!="
                           : name == "lt" || name == "lessthan"    ? "<"
                           : name == "gt" || name == "greaterthan" ? ">"
                           : name == "le"                          ? "<="
                           : name == "ge"                          ? ">="
                                                                   : name;
  if (sign == "==" || sign == "!=" || sign == "sameas")
    return done(equal(of, given.need("other"), budget) == (sign != "!="));
  if (sign == "<" || sign == ">" || sign == "<=" || sign == ">=") {
    const int order = compare(of, given.need("other"), budget);
    return done(sign == "<"    ? order < 0
                : sign == ">"  ? order > 0
                : sign == "<=" ? order <= 0
                               : order >= 0);
  }
  if (name == "in") {
    const Value& whole = given.need("seq");
    if (whole.text() && of.text()) {
      budget.touch(whole.text()->size());
      budget.read(of);
      return done(contains(whole.text()->bytes, of.text()->bytes));
    }
    if (const Dict* dict = whole.dict(); dict != nullptr && (of.text() || of.whole()))
      return done(dict->find(of, budget) != nullptr);
    for (const Value& item : items_of(whole, budget))
      if (equal(item, of, budget)) return done(true);
    return done(false);
  }
  stop(fmt::format("there is no test \"{}\"", name.substr(0, 40)));
}

}  // namespace tessera::text::jinja
