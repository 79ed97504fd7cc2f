// Small readers of the JSON of family files. Private to this layer.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::convert::family_json {

using spec::Json;

/// The dialects that rules may speak of.
inline constexpr const char* kDialects[] = {"hf", "gguf", "llama2c", "ggmf", "pth"};
/// Begins an entry of "drop" that names parameters of ours.
inline constexpr std::string_view kDroppedTensors = "tensors.";

inline const Json* get(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

inline std::string string_of(const Json& json, const std::string& where) {
  if (!json.is_string())
    fail(ErrorKind::spec, where, "found {}; expected a string", spec::kind_of(json));
  return json.get<std::string>();
}

inline std::vector<std::string> strings_of(const Json& json, const std::string& where) {
  if (!json.is_array())
    fail(ErrorKind::spec, where, "found {}; expected a list of strings", spec::kind_of(json));
  std::vector<std::string> list;
  for (const Json& item : json) list.push_back(string_of(item, where));
  return list;
}

}  // namespace tessera::convert::family_json
