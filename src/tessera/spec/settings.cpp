#include "tessera/spec/settings.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::spec {
namespace {

[[noreturn]] void refuse(const std::string& where,
                         const char* key,
                         const Json& found,
                         std::string_view expected) {
  fail(ErrorKind::usage, where, "{}: {}; expected {}", key, found.dump().substr(0, 60), expected);
}

}  // namespace

Settings::Settings(std::string_view text, std::string where) : where_(std::move(where)) {
  json_ = text.empty() ? Json::object() : parse_json(text, where_);
  if (!json_.is_object())
    fail(ErrorKind::input, where_, "the settings are {}; expected a JSON object", kind_of(json_));
}

const Json* Settings::find(const char* key) {
  known_.emplace_back(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Settings::flag(const char* key) {
  const Json* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(where_, key, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Settings::text(const char* key) {
  const Json* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(where_, key, *value, "a string");
  return value->get<std::string>();
}

std::optional<int64_t> Settings::whole(const char* key, int64_t least) {
  const Json* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string expected = fmt::format("a whole number of at least {}", least);
  if (!value->is_number_integer()) refuse(where_, key, *value, expected);
  // beyond int64 it is unsigned
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX})
    refuse(where_, key, *value, "a smaller number");
  if (value->get<int64_t>() < least) refuse(where_, key, *value, expected);
  return value->get<int64_t>();
}

std::optional<double> Settings::number(
    const char* key, double least, double most, const char* expected, bool above) {
  const Json* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(where_, key, *value, "a number");
  const auto x = value->get<double>();
  if (!(x >= least && x <= most) || (above && x == least)) refuse(where_, key, *value, expected);
  return x;
}

std::vector<std::string> Settings::texts(const char* key) {
  const Json* const value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  const bool strings =
      value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const Json& one) { return one.is_string(); });
  if (!strings) refuse(where_, key, *value, "a string or a list of strings");
  return value->get<std::vector<std::string>>();
}

Json Settings::any(const char* key) {
  const Json* const value = find(key);
  return value == nullptr ? Json() : *value;
}

std::optional<std::string> Settings::one_of(const char* key,
                                            const std::vector<std::string>& names) {
  const std::optional<std::string> value = text(key);
  if (value && std::find(names.begin(), names.end(), *value) == names.end())
    refuse(where_, key, *value, fmt::format("{}", fmt::join(names, ", ")));
  return value;
}

void Settings::done() const {
  for (const auto& [key, value] : json_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_name(key, known_);
    fail(ErrorKind::usage, where_, "unknown setting \"{}\"; expected {}", key.substr(0, 60),
         near.empty() ? fmt::format("one of {}", fmt::join(known_, ", "))
                      : fmt::format("\"{}\"?", near));
  }
}

}  // namespace tessera::spec
