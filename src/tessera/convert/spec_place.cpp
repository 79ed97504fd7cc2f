#include "tessera/convert/spec_place.h"

#include "tessera/convert/family_json.h"

namespace tessera::convert {

using namespace family_json;

namespace {

bool of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/// The name that an expression begins with: "=positions[i]" is positions.
std::string first_name(const Json& expression) {
  std::string name;
  if (!expression.is_string()) return name;
  const auto& text = expression.get_ref<const std::string&>();
  for (size_t i = 1; text.starts_with('=') && i < text.size() && of_name(text[i]); ++i)
    name += text[i];
  return name;
}

/// Where the family's own file gives a value; "" = nowhere.
std::string place_of_value(const Json& own, const std::string& name) {
  if (name.empty()) return "";
  if (const Json* dialects = get(own, "dialects"); dialects != nullptr && dialects->is_object())
    for (const auto& [kind, dialect] : dialects->items())
      if (const Json* read = dialect.is_object() ? get(dialect, "read") : nullptr;
          read != nullptr && read->is_object() && read->contains(name))
        return kind + ".read." + name;
  const Json* let = get(own, "let");
  return let != nullptr && let->is_object() && let->contains(name) ? "let." + name : "";
}

}  // namespace

std::string spec_place(const Json& merged, const Json& own, std::string_view error) {
  std::string place = "spec";
  const Json* at = get(merged, "spec");
  const size_t end = error.find("] ");
  if (at == nullptr || !error.starts_with('[') || end == std::string_view::npos) return place;
  std::string_view path = error.substr(1, end - 1);
  while (!path.empty() && at->is_structured()) {
    if (at->is_array()) {
      // elements of one loop, or of one entry that repeats
      if (at->size() != 1 || !path.starts_with('[')) break;
      at = &at->front();
      place += "[0]";
      path.remove_prefix(path.find(']') + 1);
      if (const Json* item = at->is_object() ? get(*at, "item") : nullptr; item != nullptr) {
        at = item;
        place += ".item";
      }
    } else {
      const std::string key(path.substr(0, path.find_first_of(".[")));
      if (!at->contains(key)) break;
      at = &at->at(key);
      place += "." + key;
      path.remove_prefix(key.size());
    }
    if (path.starts_with('.')) path.remove_prefix(1);
  }
  const std::string of_value = place_of_value(own, first_name(*at));
  return of_value.empty() ? place : of_value;
}

}  // namespace tessera::convert
