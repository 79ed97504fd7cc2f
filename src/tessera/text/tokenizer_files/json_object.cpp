#include "tessera/text/tokenizer_files/json_object.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

JsonObject::JsonObject(const spec::Json& value,
                       std::string where,
                       std::initializer_list<const char*> keys)
    : value_(value), where_(std::move(where)) {
  if (!value.is_object())
    fail(ErrorKind::file, where_, "found {}; expected an object", spec::kind_of(value));
  for (const auto& [key, unused] : value.items()) {
    const auto same = [&name = key](const char* known) { return name == known; };
    if (std::none_of(keys.begin(), keys.end(), same))
      fail(ErrorKind::file, where_, "key \"{}\" is not known; expected {}", key.substr(0, 100),
           fmt::join(keys, ", "));
  }
}

const spec::Json* JsonObject::find(const char* key) const {
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

const spec::Json& JsonObject::at(const char* key) const {
  const spec::Json* value = find(key);
  if (value == nullptr) fail(ErrorKind::file, where_, "\"{}\" is missing", key);
  return *value;
}

void JsonObject::wrong_kind(const char* key, const spec::Json& value, std::string_view want) const {
  fail(ErrorKind::file, where_, "\"{}\" is {}; expected {}", key, spec::kind_of(value), want);
}

std::string JsonObject::string(const char* key) const {
  const spec::Json& value = at(key);
  if (!value.is_string()) wrong_kind(key, value, "a string");
  return value.get<std::string>();
}

std::string JsonObject::string(const char* key, std::string_view otherwise) const {
  return has(key) ? string(key) : std::string(otherwise);
}

bool JsonObject::boolean(const char* key, bool otherwise) const {
  const spec::Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong_kind(key, *value, "true or false");
  return value->get<bool>();
}

int64_t JsonObject::integer(const char* key) const {
  const spec::Json& value = at(key);
  if (!value.is_number_integer()) wrong_kind(key, value, "an integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
    wrong_kind(key, value, "an integer of 64 bits");
  return value.get<int64_t>();
}

int64_t JsonObject::integer(const char* key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}

std::string JsonObject::character(const char* key) const {
  const std::string text = string(key);
  if (text.empty() || character_length(text, 0) != text.size())
    fail(ErrorKind::file, where_, "\"{}\" = \"{}\"; expected one character", key,
         text.substr(0, 50));
  return text;
}

std::string type_of(const spec::Json& value, const std::string& where) {
  if (!value.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(value));
  const auto type = value.find("type");
  if (type == value.end() || !type->is_string())
    fail(ErrorKind::file, where, "\"type\" is missing or no string");
  return type->get<std::string>();
}

}  // namespace tessera::text
