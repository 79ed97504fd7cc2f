#include "tessera/spec/names.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::spec {

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string near = nearest_name(name, candidates);
  return near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near);
}

void check_keys(const Json& json,
                const std::vector<std::string>& known,
                const std::string& where,
                std::string_view also) {
  if (!json.is_object())
    fail(ErrorKind::spec, where, "found {}; expected an object", kind_of(json));
  for (const auto& [key, value] : json.items()) {
    const bool valid =
        (!also.empty() && key == also) || std::find(known.begin(), known.end(), key) != known.end();
    if (!valid)
      fail(ErrorKind::spec, where, "unknown key \"{}\"{}; valid keys: {}", key,
           did_you_mean(key, known),
           known.empty() ? std::string(also.empty() ? "none" : also)
                         : fmt::format("{}", fmt::join(known, ", ")));
  }
}

}  // namespace tessera::spec
