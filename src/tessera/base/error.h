// Throwing the library's exception type (error_type.h).
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "tessera/base/error_type.h"

namespace tessera {

/// fail(ErrorKind::spec, "rope", "n_heads = {} does not divide d_model = {}", 12, 1000)
template <class... Args>
[[noreturn]] void fail(ErrorKind kind,
                       std::string_view where,
                       fmt::format_string<Args...> format,
                       Args&&... args) {
  throw Error(kind, where, fmt::format(format, std::forward<Args>(args)...));
}

/// Checks an invariant of the library; a failure is a bug in tessera, never in the input.
template <class... Args>
void require(bool holds,
             std::string_view where,
             fmt::format_string<Args...> format,
             Args&&... args) {
  if (!holds) fail(ErrorKind::internal, where, format, std::forward<Args>(args)...);
}

}  // namespace tessera
