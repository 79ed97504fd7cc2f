// Large numbers as people type them: 10M, 1.5e9, 300k; sizes: 24GiB, 8G.
#pragma once

#include <charconv>
#include <cmath>
#include <map>
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

/// Bytes of "24GiB", "8G" (= "8GB", powers of 1000), "500M" or "4096". Throws Error(usage) that
/// names `option` for anything else.
inline int64_t bytes_of(const std::string& option, const std::string& text) {
  static const std::map<std::string, double> units{
      {"", 1},         {"K", 1e3},      {"M", 1e6},     {"G", 1e9},   {"T", 1e12},
      {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12}, {"KiB", 1024},
      {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto found = units.find(std::string(stop, text.data() + text.size()));
  if (error != std::errc() || found == units.end() || !(number > 0) ||
      number * found->second > 1e18)
    fail(ErrorKind::usage, option, "found \"{}\"; expected a size such as 24GiB, 8G or 500M", text);
  return static_cast<int64_t>(number * found->second);
}

}  // namespace tessera::cli
