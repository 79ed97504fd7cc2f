// Members of objects of config.json in a family file, and the places of names in it.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/family_check.h"
#include "tessera/convert/family_json.h"
#include "tessera/spec/names.h"

namespace tessera::convert {

using namespace family_json;

namespace {

/// Entries of a family file without expressions.
constexpr const char* kTexts[] = {
    "about",         "why",       "unsure", "meanings", "ignored_keys", "ignored_tensors",
    "ignored_heads", "read_only", "types",  "keys",     "names",        "claims"};

/// The path of the first expression that has a name, "dialects.hf.read.x"; "" = none.
std::string expression_with(const Json& json, const std::string& name, const std::string& path) {
  if (json.is_string()) return identifiers_of(json).contains(name) ? path : "";
  if (!json.is_structured()) return "";
  size_t index = 0;
  for (const auto& [key, value] : json.items()) {
    if (json.is_object() &&
        std::find(std::begin(kTexts), std::end(kTexts), key) != std::end(kTexts))
      continue;
    const std::string inner = json.is_array() ? fmt::format("{}[{}]", path, index)
                              : path.empty()  ? key
                                              : path + "." + key;
    ++index;
    if (const std::string found = expression_with(value, name, inner); !found.empty()) return found;
  }
  return "";
}

/// Whether a text has a path, and not as the beginning of a longer name.
bool has_path(std::string_view text, std::string_view path) {
  for (size_t at = 0; (at = text.find(path, at)) != std::string_view::npos; at += path.size()) {
    const size_t end = at + path.size();
    if (end == text.size() ||
        (text[end] != '_' && std::isalnum(static_cast<unsigned char>(text[end])) == 0))
      return true;
  }
  return false;
}

using PlacedPaths = std::multimap<std::string, std::string>;  // a path of the config: its place

void add_paths(const NamedTemplates& list,
               const Json* own,
               const std::string& where,
               PlacedPaths& paths) {
  if (own == nullptr || !own->is_object()) return;
  for (const auto& [name, body] : list) {
    if (!own->contains(name)) continue;
    std::set<std::string> found;
    body->collect_paths("config", found);
    for (const std::string& path : found) paths.emplace(path, where + "." + name);
  }
}

/// Paths that the file itself reads, by the base's names.
PlacedPaths own_paths(const FamilyParts& parts, const std::string& kind, const Json& own) {
  const Family& family = parts.family;
  const std::string where = family.name + "." + kind;
  PlacedPaths paths;
  add_paths(family.dialect(kind).read, get(own, "read"), where + ".read", paths);
  add_paths(family.let, get(parts.own, "let"), family.name + ".let", paths);
  for (const char* entry : {"expect", "keys"})
    if (const Json* list = get(own, entry); list != nullptr && list->is_object())
      for (const auto& [path, value] : list->items())
        if (!value.is_null()) paths.emplace(path, fmt::format("{}.{}.{}", where, entry, path));
  return paths;
}

}  // namespace

std::string place_of_name(const FamilyParts& parts, const std::string& name) {
  constexpr std::string_view kOf = "dialects.";
  std::string path = expression_with(parts.own, name, "");
  if (path.starts_with(kOf)) path.erase(0, kOf.size());
  return path.empty() ? "" : parts.family.name + "." + path;
}

void check_family_members(const FamilyParts& parts) {
  constexpr const char* kKind = "hf";
  const Json* dialects = get(parts.own, "dialects");
  const Json* own = dialects == nullptr ? nullptr : get(*dialects, kKind);
  if (own == nullptr || !own->is_object()) return;
  const Dialect& dialect = parts.family.dialect(kKind);
  const Json* listed = get(*own, "claims");
  const std::string below = parts.below.dump();
  for (const auto& [path, place] : own_paths(parts, kKind, *own)) {
    const size_t dot = path.rfind('.');
    // what the base reads, and what the file says that its type has
    if (dot == std::string::npos || has_path(below, path) || dialect.ignores_key(path) ||
        (listed != nullptr && std::find(listed->begin(), listed->end(), path) != listed->end()))
      continue;
    const std::string object = path.substr(0, dot), member = path.substr(dot + 1);
    const std::set<std::string> known = parts.set.members_read(kKind, object);
    if (known.contains(path) || known.contains(object + ".*")) continue;
    std::vector<std::string> names;
    for (const std::string& other : known) names.push_back(other.substr(dot + 1));
    if (const std::string near = spec::did_you_mean(member, names); !near.empty())
      fail(ErrorKind::spec, place,
           "no family reads a member \"{}\" of \"{}\"{}; a member that this type alone has stands "
           "in \"claims\"",
           member, object, near);
  }
}

}  // namespace tessera::convert
