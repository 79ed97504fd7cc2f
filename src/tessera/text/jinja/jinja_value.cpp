#include "tessera/text/jinja/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text::jinja {

Text Text::cut(size_t begin, size_t end) const {
  Text out;
  begin = std::min(begin, size());
  end = std::max(begin, std::min(end, size()));
  out.bytes = bytes.substr(begin, end - begin);
  out.marks = marks.substr(begin, end - begin);
  return out;
}

void Text::add(const Text& other) {
  bytes += other.bytes;
  marks += other.marks;
  if (size() > Budget::kMaxText)
    stop(fmt::format("a text of {} bytes; at most {}", size(), Budget::kMaxText));
}

void Text::add(std::string_view text, char mark) {
  bytes += text;
  marks.append(text.size(), mark);
  if (size() > Budget::kMaxText)
    stop(fmt::format("a text of {} bytes; at most {}", size(), Budget::kMaxText));
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  if (numbers && key.whole()) return find(std::to_string(key.integer()), budget);
  return !numbers && key.text() ? find(key.text()->bytes, budget) : nullptr;
}

Value Dict::key(size_t i) const {
  return numbers ? Value{static_cast<int64_t>(std::stoll(items[i].first.bytes))}
                 : make_text(items[i].first);
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
  budget.touch(items.size() * Budget::kItem);
  for (const auto& [name, value] : items) {
    if (name.size() != key.size()) continue;
    budget.touch(key.size());
    if (name.bytes == key) return &value;
  }
  return nullptr;
}

void stop(const std::string& what) {
  fail(ErrorKind::input, "chat template", "{}", what);
}

void Budget::touch(size_t bytes) {
  left -= static_cast<int64_t>(std::min(bytes, size_t{1} << 40));
  if (left < 0)
    stop(
        "it takes more than a million steps (a step is an operation, 256 bytes copied or 64 bytes "
        "read one by one); expected a template that ends, or a shorter conversation");
  if (left > poll_at) return;
  poll_at = left - kPoll;
  if (poll) poll();
}

void Budget::read(const Value& value) {
  if (value.text()) read(*value.text());
  if (value.list()) touch(kItem * value.list()->items.size());
  if (value.dict()) touch(value.dict()->weight);
}

void Budget::read(const Arguments& arguments) {
  touch(kItem * (arguments.values.size() + arguments.named.size()));
  for (const Value& value : arguments.values) read(value);
  for (const auto& [name, value] : arguments.named) read(value);
}

Value Budget::made(Value value) {
  if (value.text()) touch(value.text()->size());
  if (value.list()) touch(kItem * value.list()->items.size());
  if (value.dict()) touch(value.dict()->weight);
  return value;
}

Value make_undefined(std::string name) {
  return {Undefined{std::move(name)}};
}
Value make_none() {
  return {std::monostate{}};
}
Value make_text(Text text) {
  return {std::make_shared<const Text>(std::move(text))};
}
Value make_text(std::string_view text) {
  return make_text(Text(text));
}

namespace {

int depth_of(const Value& value) {
  return value.list() ? value.list()->depth : value.dict() ? value.dict()->depth : 0;
}

int deeper(int depth) {
  if (depth >= Budget::kMaxDepth) stop(fmt::format("lists more than {} deep", Budget::kMaxDepth));
  return depth + 1;
}

void check_count(size_t n) {
  if (n > Budget::kMaxItems)
    stop(fmt::format("a list of {} items; at most {}", n, Budget::kMaxItems));
}

}  // namespace

Value make_list(std::vector<Value> items, bool tuple) {
  check_count(items.size());
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return {std::make_shared<const List>(List{std::move(items), tuple, deeper(depth)})};
}

void add_item(std::vector<Value>& items, Value item) {
  check_count(items.size() + 1);
  items.push_back(std::move(item));
}

Value make_dict(std::vector<std::pair<Text, Value>> items, bool numbers) {
  check_count(items.size());
  int depth = 0;
  size_t weight = 0;
  for (const auto& [key, item] : items) {
    depth = std::max(depth, depth_of(item));
    weight += key.size() + Budget::kItem;
  }
  return {std::make_shared<const Dict>(Dict{std::move(items), deeper(depth), numbers, weight})};
}

Value make_call(std::string name, std::function<Value(Arguments&)> call) {
  return {std::make_shared<const Callable>(Callable{std::move(name), std::move(call)})};
}

Value value_of(const spec::Json& json, char mark) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX})
    return {json.get<double>()};
  if (json.is_number_integer()) return {json.get<int64_t>()};
  if (json.is_number()) return {json.get<double>()};
  if (json.is_string()) return make_text(Text(json.get_ref<const std::string&>(), mark));
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(value_of(item, mark));
    return make_list(std::move(items));
  }
  if (json.is_object()) {
    std::vector<std::pair<Text, Value>> items;
    for (const auto& [key, item] : json.items())
      items.emplace_back(Text(key, mark), value_of(item, mark));
    return make_dict(std::move(items));
  }
  return make_none();
}

bool truth(const Value& value) {
  if (value.undefined() || value.none()) return false;
  if (value.number()) return value.real() != 0;
  if (value.text()) return value.text()->size() > 0;
  if (value.list()) return !value.list()->items.empty();
  if (value.dict()) return !value.dict()->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.charge();
  if (a.number() && b.number())
    return a.whole() && b.whole() ? a.integer() == b.integer() : a.real() == b.real();
  if (a.data.index() != b.data.index()) return false;
  if (a.undefined() || a.none()) return true;
  if (a.text()) {
    budget.charge(a.text()->size());
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.list()) {
    const List &x = *a.list(), &y = *b.list();
    if (x.tuple != y.tuple || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i)
      if (!equal(x.items[i], y.items[i], budget)) return false;
    return true;
  }
  if (a.dict()) {
    const Dict &x = *a.dict(), &y = *b.dict();
    if (x.items.size() != y.items.size() || x.numbers != y.numbers) return false;
    for (const auto& [key, value] : x.items) {
      const Value* other = y.find(key.bytes, budget);
      if (other == nullptr || !equal(value, *other, budget)) return false;
    }
    return true;
  }
  if (a.space()) return a.space() == b.space();
  return a.callable() == b.callable();
}

const char* type_name(const Value& value) {
  if (value.undefined()) return "an undefined value";
  if (value.none()) return "none";
  if (value.is<bool>()) return "a boolean";
  if (value.number()) return "a number";
  if (value.text()) return "a text";
  if (value.list()) return "a list";
  if (value.dict()) return "a mapping";
  if (value.space()) return "a namespace";
  return "a function";
}

int compare(const Value& a, const Value& b, Budget& budget) {
  budget.charge();
  if (a.number() && b.number()) return a.real() < b.real() ? -1 : a.real() > b.real() ? 1 : 0;
  if (a.text() && b.text()) {
    budget.charge(a.text()->size());
    return a.text()->bytes.compare(b.text()->bytes);  // UTF-8 keeps the order of code points
  }
  if (a.list() && b.list()) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  stop(fmt::format("{} and {} cannot be compared", type_name(a), type_name(b)));
}

namespace {

std::string number_text(const Value& value) {
  if (value.is<bool>()) return std::get<bool>(value.data) ? "True" : "False";
  if (value.is<int64_t>()) return std::to_string(std::get<int64_t>(value.data));
  const double number = std::get<double>(value.data);
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::string out = fmt::format("{}", number);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

/// A string literal of Python.
Text quoted(const Text& text) {
  const bool single =
      text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = single ? '"' : '\'';
  Text out(std::string_view(&quote, 1));
  const auto plain = [&](char c) {
    return static_cast<uint8_t>(c) >= 0x20 && c != 0x7F && c != quote && c != '\\';
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && plain(text.bytes[end])) ++end;
    out.add(text.cut(at, end));
    at = end;
    if (at == text.size()) break;
    const char c = text.bytes[at], mark = text.marks[at];
    if (c == quote || c == '\\') {
      out.add("\\", mark);
      out.add(text.cut(at, at + 1));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.add(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", mark);
    } else {
      out.add(fmt::format("\\x{:02x}", static_cast<uint8_t>(c)), mark);
    }
    ++at;
  }
  out.add(std::string_view(&quote, 1));
  return out;
}

}  // namespace

Text to_text(const Value& value, Budget& budget) {
  if (value.undefined()) return Text();
  if (value.text()) {
    budget.charge(value.text()->size());
    return *value.text();
  }
  return to_repr(value, budget);
}

Text to_repr(const Value& value, Budget& budget) {
  budget.charge();
  if (value.undefined()) return Text("Undefined");
  if (value.none()) return Text("None");
  if (value.number()) return Text(number_text(value));
  if (value.text()) {
    budget.read(value);
    return quoted(*value.text());
  }
  if (value.list()) {
    const List& list = *value.list();
    Text out(list.tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out.add(", ");
      out.add(to_repr(list.items[i], budget));
    }
    out.add(!list.tuple ? "]" : list.items.size() == 1 ? ",)" : ")");
    return out;
  }
  if (value.dict()) {
    Text out("{");
    budget.touch(value.dict()->weight * Budget::kCharacter);
    for (size_t i = 0; i < value.dict()->items.size(); ++i) {
      const auto& [key, item] = value.dict()->items[i];
      if (i > 0) out.add(", ");
      out.add(value.dict()->numbers ? key : quoted(key));
      out.add(": ");
      out.add(to_repr(item, budget));
    }
    out.add("}");
    return out;
  }
  return Text(value.space() ? "<Namespace>" : "<" + value.callable()->name + ">");
}

namespace {

void add_json_string(Text& out, const Text& text, bool ascii) {
  out.add("\"");
  const auto plain = [&](char c) {
    const auto byte = static_cast<uint8_t>(c);
    return byte >= 0x20 && c != '"' && c != '\\' && !(ascii && byte >= 0x80);
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && plain(text.bytes[end])) ++end;
    out.add(text.cut(at, end));
    at = end;
    if (at == text.size()) break;
    const size_t length = std::max<size_t>(1, character_length(text.bytes, at));
    const char c = text.bytes[at], mark = text.marks[at];
    constexpr std::string_view kPlain = "\"\\\n\r\t\f\b", kNames = "\"\\nrtfb";
    if (const size_t i = kPlain.find(c); i != std::string_view::npos) {
      out.add("\\", mark);
      out.add(kNames.substr(i, 1), mark);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out.add(fmt::format("\\u{:04x}", static_cast<uint8_t>(c)), mark);
    } else if (length > 1 && ascii) {
      const char32_t point = code_point_at(text.bytes, at, length);
      if (point < 0x10000) {
        out.add(fmt::format("\\u{:04x}", static_cast<uint32_t>(point)), mark);
      } else {
        const uint32_t rest = point - 0x10000;
        out.add(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)),
                mark);
      }
    } else {
      out.add(text.cut(at, at + length));
    }
    at += length;
  }
  out.add("\"");
}

void add_json(Text& out, const Value& value, const JsonStyle& style, int level, Budget& budget) {
  budget.charge();
  const bool lines = style.indent >= 0;
  const std::string comma = !style.comma.empty() ? style.comma : lines ? "," : ", ";
  const std::string colon = !style.colon.empty() ? style.colon : ": ";
  const auto line = [&](int at) {
    if (lines)
      out.add("\n" + std::string(static_cast<size_t>(style.indent) * static_cast<size_t>(at), ' '));
  };
  if (value.none()) {
    out.add("null");
  } else if (value.is<bool>()) {
    out.add(std::get<bool>(value.data) ? "true" : "false");
  } else if (value.is<double>() && !std::isfinite(value.real())) {
    out.add(std::isnan(value.real()) ? "NaN" : value.real() > 0 ? "Infinity" : "-Infinity");
  } else if (value.number()) {
    out.add(number_text(value));
  } else if (value.text()) {
    budget.read(value);
    add_json_string(out, *value.text(), style.ascii);
  } else if (value.list()) {
    const auto& items = value.list()->items;
    out.add("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.add(comma);
      line(level + 1);
      add_json(out, items[i], style, level + 1, budget);
    }
    if (!items.empty()) line(level);
    out.add("]");
  } else if (value.dict()) {
    constexpr size_t kSort = 16;  // comparisons of a key, at most log2(kMaxItems)
    budget.touch(value.dict()->weight * (Budget::kCharacter + (style.sorted ? kSort : 0)));
    std::vector<const std::pair<Text, Value>*> items;
    for (const auto& item : value.dict()->items) items.push_back(&item);
    if (style.sorted)
      std::stable_sort(items.begin(), items.end(),
                       [](auto* a, auto* b) { return a->first.bytes < b->first.bytes; });
    out.add("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.add(comma);
      line(level + 1);
      add_json_string(out, items[i]->first, style.ascii);
      out.add(colon);
      add_json(out, items[i]->second, style, level + 1, budget);
    }
    if (!items.empty()) line(level);
    out.add("}");
  } else {
    stop(fmt::format("tojson of {}", type_name(value)));
  }
}

}  // namespace

Text to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Text out;
  add_json(out, value, style, 0, budget);
  return out;
}

std::vector<size_t> character_ends(const Text& text) {
  std::vector<size_t> ends;
  ends.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    at += std::max<size_t>(1, character_length(text.bytes, at));
    ends.push_back(at);
  }
  return ends;
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (value.undefined()) return items;
  if (value.list()) {
    budget.charge(value.list()->items.size() * 16);
    return value.list()->items;
  }
  if (value.dict()) {
    budget.charge(value.dict()->weight);
    for (size_t i = 0; i < value.dict()->items.size(); ++i) items.push_back(value.dict()->key(i));
    return items;
  }
  if (value.text()) {
    size_t begin = 0;
    budget.charge(value.text()->size() * 64);
    for (const size_t end : character_ends(*value.text())) {
      add_item(items, make_text(value.text()->cut(begin, end)));
      begin = end;
    }
    return items;
  }
  stop(fmt::format("{} cannot be iterated", type_name(value)));
}

size_t length_of(const Value& value, Budget& budget) {
  if (value.undefined()) return 0;
  if (value.list()) return value.list()->items.size();
  if (value.dict()) return value.dict()->items.size();
  if (value.text()) {
    budget.read(value);
    return character_ends(*value.text()).size();
  }
  stop(fmt::format("{} has no length", type_name(value)));
}

}  // namespace tessera::text::jinja
