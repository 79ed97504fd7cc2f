// Values of a chat template, as in Python, with the origin of each byte of a text: input of the
// template stays distinguishable from template text through all operations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::text::jinja {

/// Marks are parallel to the bytes, one each.
struct Text {
  /// Answers may be template text or input.
  static constexpr char kTemplate = 0, kInput = 1, kAnswer = 2;
  std::string bytes, marks;
  bool markup = false;  // made by `escape` or `safe`; not escaped again

  Text() = default;
  explicit Text(std::string_view text, char mark = kTemplate)
      : bytes(text), marks(text.size(), mark) {}
  size_t size() const { return bytes.size(); }
  Text cut(size_t begin, size_t end) const;
  void add(const Text& other);
  void add(std::string_view text, char mark = kTemplate);
};

struct Value;
struct Budget;
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  bool group = false;  // a tuple of the filter groupby: its items are .grouper and .list
};
/// In order of insertion. Keys are strings, or all are integers in decimal notation.
struct Dict {
  std::vector<std::pair<Text, Value>> items;
  int depth = 1;
  bool numbers = false;
  /// Bytes of the keys plus kItem per entry: the cost of copying the keys.
  size_t weight = 0;
  /// By key, a string or a number; nullptr if there is none.
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key, Budget& budget) const;
  Value key(size_t i) const;
};
struct Namespace;  // result of `namespace()`; the only mutable value, owned by its rendering
struct Undefined {
  std::string name;
};
struct Arguments;
struct Callable {
  std::string name;
  std::function<Value(Arguments&)> call;
};

struct Value {
  using Data = std::variant<Undefined,
                            std::monostate,  // none
                            bool,
                            int64_t,
                            double,
                            std::shared_ptr<const Text>,
                            std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>,
                            Namespace*,
                            std::shared_ptr<const Callable>>;
  Data data;

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  bool undefined() const { return is<Undefined>(); }
  bool none() const { return is<std::monostate>(); }
  const Text* text() const { return held<Text>(); }
  const List* list() const { return held<List>(); }
  const Dict* dict() const { return held<Dict>(); }
  const Callable* callable() const { return held<Callable>(); }
  Namespace* space() const { return is<Namespace*>() ? std::get<Namespace*>(data) : nullptr; }
  bool number() const { return is<bool>() || is<int64_t>() || is<double>(); }
  bool whole() const { return is<bool>() || is<int64_t>(); }
  int64_t integer() const { return is<bool>() ? std::get<bool>(data) : std::get<int64_t>(data); }
  double real() const {
    return is<double>() ? std::get<double>(data) : static_cast<double>(integer());
  }

 private:
  template <class T>
  const T* held() const {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&data);
    return pointer == nullptr ? nullptr : pointer->get();
  }
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

/// The remaining work of a rendering, about a second of processor time. The unit is one copied or
/// compared byte. Every node, filter, test, method, lookup, comparison and concatenation is charged
/// for its bytes and items before it touches them. Throws Error(input) when it is used up.
struct Budget {
  static constexpr size_t kOperation = 256, kCharacter = 4, kItem = 16;
  static constexpr size_t kMaxText = size_t{4} << 20, kMaxItems = 100'000;
  static constexpr int kMaxDepth = 64;
  int64_t left = 1'000'000 * static_cast<int64_t>(kOperation);
  /// Called at the beginning and every kPoll units, some milliseconds; an exception ends the
  /// rendering. May be empty.
  std::function<void()> poll = {};
  static constexpr int64_t kPoll = 1000 * static_cast<int64_t>(kOperation);
  int64_t poll_at = left;  // `left` at the next call of poll
  /// An operation that copies or compares `bytes`.
  void charge(size_t bytes = 0) { touch(kOperation + bytes); }
  /// Bytes within a charged operation.
  void touch(size_t bytes);
  /// A value that is read character by character or item by item.
  void read(const Value& value);
  void read(const Text& text) { touch(kCharacter * text.size()); }
  void read(const Arguments& arguments);
  /// A result: charged by bytes or items.
  Value made(Value value);
};

[[noreturn]] void stop(const std::string& what);  // Error(input), "[chat template] ..."

Value make_undefined(std::string name = {});
Value make_none();
Value make_text(Text text);
Value make_text(std::string_view text);
Value make_list(std::vector<Value> items, bool tuple = false);
/// Appends to a list under construction. Stops the rendering at kMaxItems.
void add_item(std::vector<Value>& items, Value item);
Value make_dict(std::vector<std::pair<Text, Value>> items, bool numbers = false);
Value make_call(std::string name, std::function<Value(Arguments&)> call);
/// Strings and keys get this mark.
Value value_of(const spec::Json& json, char mark);

bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
/// Negative, 0 or positive; stops the rendering for values that Python does not compare.
int compare(const Value& a, const Value& b, Budget& budget);
const char* type_name(const Value& value);

/// Python's str() and repr().
Text to_text(const Value& value, Budget& budget);
Text to_repr(const Value& value, Budget& budget);
struct JsonStyle {
  int indent = -1;  // none
  bool ascii = false, sorted = false;
  std::string comma, colon;  // "" = as in Python
};
/// Python's json.dumps().
Text to_json(const Value& value, const JsonStyle& style, Budget& budget);

/// Ends of the characters of a text: character i is [ends[i - 1], ends[i]).
std::vector<size_t> character_ends(const Text& text);
/// Items of an iterable; an undefined value has none.
std::vector<Value> items_of(const Value& value, Budget& budget);
size_t length_of(const Value& value, Budget& budget);

}  // namespace tessera::text::jinja
