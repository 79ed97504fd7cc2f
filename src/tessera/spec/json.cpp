#include "tessera/spec/json.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"

namespace tessera::spec {
namespace {

// Builds the tree from parser events, so that limits hold before memory is spent.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, std::string_view where, const JsonLimits& limits)
      : text_(text), where_(where), limits_(limits) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value))
      fail(ErrorKind::file, where_, "number {} is out of range; expected a finite number",
           text.substr(0, 40));
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override {
    fail(ErrorKind::file, where_, "binary value; expected JSON text");
  }

  bool start_object(size_t) override { return open(Json::object()); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      fail(ErrorKind::file, where_, "key {} appears twice in one object",
           Json(name.substr(0, 100)).dump(-1, ' ', true, Json::error_handler_t::replace));
    key_ = name;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(size_t position,
                   const std::string&,
                   const nlohmann::detail::exception& e) override {
    // as other programs write them; of "nan" the first letter might begin "null"
    for (const size_t read : {size_t{1}, size_t{2}})
      for (const std::string_view name : {"NaN", "Infinity", "nan", "inf"})
        if (position >= read && position <= text_.size() &&
            text_.substr(position - read).starts_with(name))
          fail(ErrorKind::file, where_, "byte {}: found {}; expected a finite number",
               position + 1 - read, name);
    std::string what = e.what();
    if (const size_t colon = what.rfind("- "); colon != std::string::npos)
      what = what.substr(colon + 2);
    // "[json.exception.NAME.NUMBER] " of the parser's own
    if (const size_t end = what.find("] "); what.starts_with("[json.") && end != std::string::npos)
      what = what.substr(end + 2);
    fail(ErrorKind::file, where_, "byte {}: invalid JSON: {}", position, what.substr(0, 200));
  }

 private:
  template <class Value>
  bool add(Value&& value) {
    place(Json(std::forward<Value>(value)));
    return true;
  }

  Json* place(Json value) {
    if (++count_ > limits_.max_values)
      fail(ErrorKind::file, where_, "more than {} JSON values", limits_.max_values);
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // keys are unique here, so append without ordered_json's linear look-up
    auto& object = parent.get_ref<Json::object_t&>();
    static_cast<Json::object_t::Container&>(object).emplace_back(std::move(key_), std::move(value));
    return &object.back().second;
  }

  bool open(Json empty) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth)
      fail(ErrorKind::file, where_, "JSON nested deeper than {}", limits_.max_depth);
    stack_.push_back(place(std::move(empty)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string where_;
  const JsonLimits& limits_;
  Json root_;
  std::string key_;
  size_t count_ = 0;
  std::vector<Json*> stack_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    fail(ErrorKind::file, where, "{} bytes of JSON; at most {} are read here", text.size(),
         limits.max_bytes);
  // the parser takes a zero byte for the end and skips a byte order mark
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail(ErrorKind::file, where, "byte {}: a zero byte; expected JSON text", zero);
  if (text.substr(0, 3) == "\xef\xbb\xbf")
    fail(ErrorKind::file, where, "byte 0: a byte order mark; expected JSON text");
  Builder builder(text, where, limits);
  Json::sax_parse(text.begin(), text.end(), &builder, nlohmann::detail::input_format_t::json, true,
                  limits.comments);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

std::string_view kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    default:
      return "an unknown value";
  }
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // as far apart as their lengths are, at least
    const auto [shorter, longer] = std::minmax({name.size(), candidate.size()});
    if (longer - shorter >= best_distance) continue;
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t substitute = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace tessera::spec
