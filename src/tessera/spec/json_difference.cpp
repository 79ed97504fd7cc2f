#include "tessera/spec/json_difference.h"

#include <algorithm>

#include <fmt/format.h>

namespace tessera::spec {
namespace {

using Skips = std::function<bool(const std::string& path)>;

std::optional<JsonDifference> differing(const Json* before,
                                        const Json* after,
                                        const std::string& path,
                                        const Skips& skips) {
  if (skips && skips(path)) return std::nullopt;
  const auto both = [&](bool (Json::*is)() const) {
    return before != nullptr && after != nullptr && (before->*is)() && (after->*is)();
  };
  if (both(&Json::is_object)) {
    const auto member = [&](const Json& in, const std::string& key) {
      const auto found = in.find(key);
      return found == in.end() ? nullptr : &*found;
    };
    const auto below = [&](const std::string& key) {
      return path.empty() ? key : path + "." + key;
    };
    for (const auto& [key, value] : before->items())
      if (auto found = differing(&value, member(*after, key), below(key), skips)) return found;
    for (const auto& [key, value] : after->items())
      if (!before->contains(key))
        if (auto found = differing(nullptr, &value, below(key), skips)) return found;
    return std::nullopt;
  }
  if (both(&Json::is_array)) {
    for (size_t i = 0; i < std::max(before->size(), after->size()); ++i)
      if (auto found = differing(i < before->size() ? &(*before)[i] : nullptr,
                                 i < after->size() ? &(*after)[i] : nullptr,
                                 fmt::format("{}[{}]", path, i), skips))
        return found;
    return std::nullopt;
  }
  const auto absent = [](const Json* value) { return value == nullptr || value->is_discarded(); };
  if (absent(before) || absent(after) ? absent(before) == absent(after) : *before == *after)
    return std::nullopt;
  const auto copied = [&](const Json* value) {
    return absent(value) ? std::nullopt : std::optional<Json>(std::in_place, *value);
  };
  return JsonDifference{path, copied(before), copied(after)};
}

}  // namespace

std::optional<JsonDifference> first_difference(const Json& before,
                                               const Json& after,
                                               const Skips& skips) {
  return differing(&before, &after, "", skips);
}

}  // namespace tessera::spec
