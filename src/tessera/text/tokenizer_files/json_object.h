// Strict reader of one object of a tokenizer file: every key must be known, every value of the
// right type.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/spec/json.h"

namespace tessera::text {

/// `where` names file and path, such as "tokenizer.json: pre_tokenizer.pretokenizers[1]".
class JsonObject {
 public:
  /// Throws Error(file) if `value` is no object or has a key outside `keys`.
  JsonObject(const spec::Json& value, std::string where, std::initializer_list<const char*> keys);

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return find(key) != nullptr; }
  /// The value; nullptr if absent or null.
  const spec::Json* find(const char* key) const;
  const spec::Json& at(const char* key) const;

  std::string string(const char* key) const;
  std::string string(const char* key, std::string_view otherwise) const;
  bool boolean(const char* key, bool otherwise) const;
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t otherwise) const;
  /// A string of exactly one character.
  std::string character(const char* key) const;

 private:
  [[noreturn]] void wrong_kind(const char* key, const spec::Json& value, std::string_view) const;
  const spec::Json& value_;
  std::string where_;
};

/// The "type" of a component; throws Error(file) if it is missing.
std::string type_of(const spec::Json& value, const std::string& where);

}  // namespace tessera::text
