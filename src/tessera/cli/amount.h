// Large numbers as people type them: 10M, 1.5e9, 300k.
#pragma once

#include <charconv>
#include <cmath>
#include <string>

#include "tessera/base/error.h"

namespace tessera::cli {

/// k, M, G (or B) and T are powers of 1000. Throws Error(usage) that names `option` for anything
/// else, and for what is not above 0.
inline double amount_of(const std::string& option, const std::string& text) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(stop, text.data() + text.size());
  constexpr std::string_view kUnits = "kMGTB";
  constexpr double kSizes[] = {1e3, 1e6, 1e9, 1e12, 1e9};
  double size = unit.empty() ? 1 : 0;
  if (unit.size() == 1)
    if (const size_t at = kUnits.find(unit[0]); at != kUnits.npos) size = kSizes[at];
  const double amount = number * size;
  if (error != std::errc() || !(amount > 0) || !(amount < 1e30))
    fail(ErrorKind::usage, option,
         "found \"{}\"; expected a number above 0, such as 10M, 1.5e9 or 300k", text);
  return amount;
}

}  // namespace tessera::cli
